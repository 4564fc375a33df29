"""Embeddings of a running worker against llama.cpp's.

    python embeddings.py write MODEL VARIANT POOLING   a tiny random model, F32, whose file says POOLING
                                                       (a number of llama.cpp's enum, or "none")
    python embeddings.py compare MODEL POOLING URL     a worker that serves MODEL answers at URL

llama.cpp pools by itself, with keys and values in F32, so what is left is what our F16 keys and values cost. The
worker is asked by OpenAI's own client, which asks for base64 and reads it, and for numbers, and both are the same.
"""

import sys

import gguf
import numpy as np
import openai

import llama_cpp
import tiny_models

MIN_COSINE = 0.9999
MOST_TOKENS = 120

TEXTS = [
    "a", "the river", "The river is wide.", "Der Fluß ist breit; \u00e9t\u00e9 \u6cb3",
    "in the an" * 12, "def main():\n    return 3", " ", "0123456789" * 11,
]


def main(task, path, *rest):
    if task == "write":
        name, pooling = rest
        variant = next(it for it in tiny_models.MAIN if it.name == name)
        number = None if pooling == "none" else int(pooling)
        tiny_models.write(path, variant, "F32", seed=7, pooling=number)
    else:
        compare(path, int(rest[0]), rest[1])


def compare(path, pooling, url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    model = client.models.list().data[0].id
    with llama_cpp.Model(path, n_ctx=128, exact_kv=True, pooling=pooling) as reference:
        ids = [reference.tokenize(text, whole=True) for text in TEXTS]
        assert max(map(len, ids)) in range(100, MOST_TOKENS), "a text of many pages is among them"
        expected = [normalized(reference.embed(tokens)) for tokens in ids]
    whole = client.embeddings.create(model=model, input=TEXTS)
    assert [it.index for it in whole.data] == list(range(len(TEXTS)))
    assert whole.usage.prompt_tokens == whole.usage.total_tokens == sum(map(len, ids))
    found = [np.array(it.embedding) for it in whole.data]
    cosines = [one @ other for one, other in zip(found, expected)]
    name = gguf.PoolingType(pooling).name
    print(f"{name}: {len(cosines)} texts, least cosine {min(cosines):.7f}")
    assert min(cosines) >= MIN_COSINE, cosines
    for vector in found:
        assert abs(vector @ vector - 1) < 1e-6
    # Two texts are not one: the comparison can fail.
    apart = min(abs(one @ other) for n, one in enumerate(found) for other in found[:n])
    assert apart < 0.9, apart

    def same(**how):
        answer = client.embeddings.create(model=model, **how)
        return [np.array(it.embedding, dtype=np.float32) for it in answer.data]

    plain = np.array(found, dtype=np.float32)
    np.testing.assert_array_equal(same(input=TEXTS, encoding_format="float"), plain)
    np.testing.assert_array_equal(same(input=TEXTS[3]), plain[3:4])
    np.testing.assert_array_equal(same(input=ids), plain)
    np.testing.assert_array_equal(same(input=ids[2]), plain[2:3])
    for cut in same(input=TEXTS[:2], dimensions=5):
        assert len(cut) == 5
    cut = same(input=TEXTS[1], dimensions=5)[0]
    np.testing.assert_allclose(cut, normalized(found[1][:5]), atol=1e-6)


def normalized(vector):
    vector = vector.astype(np.float64)
    return vector / np.sqrt(vector @ vector)


if __name__ == "__main__":
    main(*sys.argv[1:])
