"""llama.cpp through its C API, as shipped in the PyPI wheel `xllamacpp`.

What lives here: loading a model, token ids, pieces, raw logits for a token history, what llama.cpp's sampler for
biases makes of them, and embeddings. What is absent on purpose: drawing, chat templates, servers. The wheel's own Python classes
do not give raw logits, so the shared object's `llama.h` symbols are called through ctypes.

`llama.h` passes parameter structs by value. Only the fields named in `_CONTEXT_FIELDS` are
touched; their offsets are checked against the library's own defaults before use, so that a
wheel with another layout fails here, loudly, instead of computing something else.
"""

import ctypes
import struct

import numpy as np
import xllamacpp

_LIB = ctypes.CDLL(xllamacpp.xllamacpp.__file__)

# Larger than any version of the parameter structs. On x86-64 and AArch64 a struct of this size
# travels in memory, and as the last argument it may be longer than the callee expects.
_PARAMS_BYTES = 512


class _Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * _PARAMS_BYTES)]

    def field(self, offset):
        return struct.unpack_from("<i", bytes(self.bytes), offset)[0]

    def set(self, offset, value):
        struct.pack_into("<i", self.bytes, offset, value)

    def set_bool(self, offset, value):
        struct.pack_into("<?", self.bytes, offset, value)


class _Batch(ctypes.Structure):
    """`struct llama_batch`."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class _TokenData(ctypes.Structure):
    """`struct llama_token_data`."""

    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class _TokenDataArray(ctypes.Structure):
    """`struct llama_token_data_array`."""

    _fields_ = [
        ("data", ctypes.POINTER(_TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


class _LogitBias(ctypes.Structure):
    """`struct llama_logit_bias`."""

    _fields_ = [("token", ctypes.c_int32), ("bias", ctypes.c_float)]


# name -> (offset, the default that must be found there)
_CONTEXT_FIELDS = {
    "n_ctx": (0, 512),
    "n_batch": (4, 2048),
    "n_ubatch": (8, 512),
    "n_seq_max": (12, 1),
    "n_threads": (28, 4),
    "n_threads_batch": (32, 4),
    "pooling_type": (44, -1),
    "flash_attn_type": (52, -1),
    "type_k": (104, 1),
    "type_v": (108, 1),
}

# In llama_model_params: the first of its booleans, behind pointers and enums.
_VOCAB_ONLY = 72

_GGML_TYPE_F32 = 0
_FLASH_ATTENTION_OFF = 0
_POOLING_RANK = 4


def _declare(name, restype, *argtypes):
    function = getattr(_LIB, name)
    function.restype = restype
    function.argtypes = list(argtypes)
    return function


_P = ctypes.c_void_p
_I = ctypes.c_int32
_model_params = _declare("llama_model_default_params", _Params)
_context_params = _declare("llama_context_default_params", _Params)
_load = _declare("llama_model_load_from_file", _P, ctypes.c_char_p, _Params)
_init = _declare("llama_init_from_model", _P, _P, _Params)
_free_context = _declare("llama_free", None, _P)
_free_model = _declare("llama_model_free", None, _P)
_vocab_of = _declare("llama_model_get_vocab", _P, _P)
_n_vocab = _declare("llama_vocab_n_tokens", _I, _P)
_is_eog = _declare("llama_vocab_is_eog", ctypes.c_bool, _P, _I)
_memory_of = _declare("llama_get_memory", _P, _P)
_memory_clear = _declare("llama_memory_clear", None, _P, ctypes.c_bool)
_decode = _declare("llama_decode", _I, _P, _Batch)
_set_embeddings = _declare("llama_set_embeddings", None, _P, ctypes.c_bool)
_pooling_type = _declare("llama_pooling_type", _I, _P)
_n_embd = _declare("llama_model_n_embd", _I, _P)
_n_cls_out = _declare("llama_model_n_cls_out", ctypes.c_uint32, _P)
_embeddings_seq = _declare("llama_get_embeddings_seq", ctypes.POINTER(ctypes.c_float), _P, _I)
_logits_ith = _declare("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), _P, _I)
_tokenize = _declare(
    "llama_tokenize", _I, _P, ctypes.c_char_p, _I, ctypes.POINTER(_I), _I, ctypes.c_bool, ctypes.c_bool
)
_token_to_piece = _declare(
    "llama_token_to_piece", _I, _P, _I, ctypes.c_char_p, _I, _I, ctypes.c_bool
)
_quantize_chunk = _declare(
    "ggml_quantize_chunk",
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_float),
)

_quantize_requires_imatrix = _declare(
    "ggml_quantize_requires_imatrix", ctypes.c_bool, ctypes.c_int
)

_init_logit_bias = _declare(
    "llama_sampler_init_logit_bias", _P, _I, _I, ctypes.POINTER(_LogitBias)
)
_sampler_apply = _declare("llama_sampler_apply", None, _P, ctypes.POINTER(_TokenDataArray))
_sampler_free = _declare("llama_sampler_free", None, _P)

_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_GGML_LOG_LEVEL_ERROR = 4


@_LOG_CALLBACK
def _log_errors_only(level, text, _):
    if level == _GGML_LOG_LEVEL_ERROR:
        print("llama.cpp:", text.decode(errors="replace").strip(), flush=True)


_LIB.llama_log_set(_log_errors_only, None)
_LIB.llama_backend_init()


class Model:
    """One model with one context; positions always start at 0."""

    def __init__(self, path, n_ctx=1024, threads=1, exact_kv=False, vocab_only=False,
                 pooling=None):
        """`vocab_only` loads no weights: text functions work, `run` does not. `pooling` is a number of
        `enum llama_pooling_type`, for a model that gives embeddings and no logits. `exact_kv` keeps keys and values in F32 and computes attention without the fused
        kernel: the reference for tiny models, where F16 rounding would be most of the
        difference. Threads wait for each other by spinning: with more than one, other tests on the same cores would
        slow them down."""
        model_params = _model_params()
        if vocab_only:
            model_params.set_bool(_VOCAB_ONLY, True)
        self._model = _load(str(path).encode(), model_params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = _vocab_of(self._model)
        self.n_vocab = _n_vocab(self.vocab)
        self._context = None if vocab_only else self._make_context(path, n_ctx, threads, exact_kv, pooling)
        self._n_past = 0

    def _make_context(self, path, n_ctx, threads, exact_kv, pooling):
        settings = {
            "n_ctx": n_ctx,
            "n_batch": n_ctx,
            "n_ubatch": min(n_ctx, 512),
            "n_threads": threads,
            "n_threads_batch": threads,
        }
        if pooling is not None:
            settings["pooling_type"] = pooling
        if exact_kv:
            settings |= {
                "type_k": _GGML_TYPE_F32,
                "type_v": _GGML_TYPE_F32,
                "flash_attn_type": _FLASH_ATTENTION_OFF,
            }
        context = _init(self._model, _checked_context_params(settings))
        if not context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        if pooling is not None:
            assert _pooling_type(context) == pooling
            _set_embeddings(context, True)
        return context

    def close(self):
        if self._context:
            _free_context(self._context)
        _free_model(self._model)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- text ---

    def tokenize(self, text, whole=False, specials=True):
        """Ids, with control tokens such as <|im_end|> parsed, or as text without `specials`; a `whole` prompt also gets
        the BOS and EOS that the model asks for."""
        raw = text.encode()
        capacity = len(raw) + 16
        ids = (ctypes.c_int32 * capacity)()
        count = _tokenize(self.vocab, raw, len(raw), ids, capacity, whole, specials)
        if count < 0:
            raise RuntimeError(f"{-count} ids for {len(raw)} bytes")
        return list(ids[:count])

    def piece(self, token, specials=True):
        """The bytes of one token; not always whole UTF-8 characters."""
        buffer = ctypes.create_string_buffer(512)
        count = _token_to_piece(self.vocab, token, buffer, len(buffer), 0, specials)
        return buffer.raw[:count]

    def is_end(self, token):
        return bool(_is_eog(self.vocab, token))

    # --- logits ---

    def reset(self):
        _memory_clear(_memory_of(self._context), True)
        self._n_past = 0

    def run(self, tokens, all_positions=False):
        """Appends tokens to the history. Returns logits as float32: [vocab] of the last token,
        or [len(tokens), vocab]."""
        if not all_positions:
            return self.rows(tokens, [len(tokens) - 1])[0]
        return self.rows(tokens, range(len(tokens)))

    def rows(self, tokens, wanted):
        """Appends tokens to the history. Returns logits as float32, [len(wanted), vocab]; `wanted` are indices of tokens."""
        self._decode(tokens, wanted)
        return np.stack([self._row(i) for i in wanted])

    def _decode(self, tokens, wanted):
        n = len(tokens)
        ids = (ctypes.c_int32 * n)(*tokens)
        positions = (ctypes.c_int32 * n)(*range(self._n_past, self._n_past + n))
        one = (ctypes.c_int32 * n)(*([1] * n))
        sequence = (ctypes.c_int32 * 1)(0)
        sequences = (ctypes.POINTER(ctypes.c_int32) * n)(
            *[ctypes.cast(sequence, ctypes.POINTER(ctypes.c_int32))] * n
        )
        outputs = (ctypes.c_int8 * n)(*[int(i in wanted) for i in range(n)])
        batch = _Batch(n, ids, None, positions, one, sequences, outputs)
        status = _decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        self._n_past += n

    def embed(self, tokens):
        """The pooled vector of a text: float32 of any length, `[n_embd]`; of a reranker `[labels]`."""
        self.reset()
        self._decode(tokens, range(len(tokens)))
        vector = _embeddings_seq(self._context, 0)
        ranks = _pooling_type(self._context) == _POOLING_RANK
        numbers = (_n_cls_out if ranks else _n_embd)(self._model)
        return np.ctypeslib.as_array(vector, shape=(numbers,)).copy()

    def _row(self, index):
        row = _logits_ith(self._context, index)
        return np.ctypeslib.as_array(row, shape=(self.n_vocab,)).copy()


def _checked_context_params(settings):
    params = _context_params()
    for name, (offset, default) in _CONTEXT_FIELDS.items():
        found = params.field(offset)
        if found != default:
            raise RuntimeError(
                f"llama_context_params has another layout in this wheel: {name} is {found}, "
                f"expected {default}; pin the version in requirements.txt"
            )
    for name, value in settings.items():
        params.set(_CONTEXT_FIELDS[name][0], value)
    return params


def biased(row, biases):
    """Logits behind llama.cpp's sampler for biases, a dict by token."""
    tokens = (_TokenData * len(row))(*[(token, logit, 0.0) for token, logit in enumerate(row.tolist())])
    array = _TokenDataArray(tokens, len(row), -1, False)
    pairs = (_LogitBias * len(biases))(*biases.items())
    sampler = _init_logit_bias(len(row), len(biases), pairs)
    _sampler_apply(sampler, array)
    _sampler_free(sampler)
    made = np.ctypeslib.as_array(tokens)
    result = np.empty(len(row), dtype=np.float32)
    result[made["id"]] = made["logit"]
    return result


def quantize(matrix, ggml_type, row_bytes):
    """Rows of float32 to ggml's own blocks, by ggml's own quantizer."""
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    rows, cols = matrix.shape
    out = np.zeros((rows, row_bytes), dtype=np.uint8)
    # The smallest types are refused without a weight for each column: here all weigh the same.
    needs_weights = _quantize_requires_imatrix(int(ggml_type))
    weights = np.ones(cols, dtype=np.float32) if needs_weights else None
    written = _quantize_chunk(
        int(ggml_type),
        matrix.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        out.ctypes.data,
        0,
        rows,
        cols,
        None if weights is None else weights.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
    )
    if written != out.size:
        raise RuntimeError(f"ggml_quantize_chunk wrote {written} of {out.size} bytes")
    return out
