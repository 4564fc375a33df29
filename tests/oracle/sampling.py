"""How a token is drawn from a row of logits, by definition: everything sorted, everything in
double precision. The order and the definitions are those of gpu-child/sampler, which
follow transformers' logits processors and the OpenAI API's penalties."""

import numpy as np

import philox


def draw(logits, parameters, position, prompt=(), generated=()):
    """The token, and how far the number it was drawn with is from the nearest border between
    two tokens (infinite for argmax)."""
    scores = penalized(np.asarray(logits, dtype=np.float64), parameters, prompt, generated)
    temperature = parameters.get("temperature", 1.0)
    if temperature == 0:
        return int(scores.argmax()), float("inf")
    probabilities = filtered((scores - scores.max()) / temperature, parameters)
    borders = probabilities.cumsum()
    number = philox.uniform(parameters["seed"], position) * borders[-1]
    token = int(np.searchsorted(borders, number, side="right"))
    before = borders[token - 1] if token else 0.0
    return token, float(min(number - before, borders[token] - number))


def penalized(scores, parameters, prompt, generated):
    repetition = parameters.get("repetition_penalty", 1.0)
    seen = np.unique(np.array([*prompt, *generated], dtype=np.int64))
    if repetition != 1.0 and len(seen):
        chosen = scores[seen]
        scores[seen] = np.where(chosen < 0, chosen * repetition, chosen / repetition)
    for token, count in zip(*np.unique(np.array(generated, dtype=np.int64), return_counts=True)):
        scores[token] -= count * parameters.get("frequency_penalty", 0.0)
        scores[token] -= parameters.get("presence_penalty", 0.0)
    return scores


def filtered(scores, parameters):
    top_k = parameters.get("top_k", 0)
    if 0 < top_k < len(scores):
        kth = np.partition(scores, -top_k)[-top_k]
        scores = np.where(scores < kth, -np.inf, scores)
    top_p = parameters.get("top_p", 1.0)
    if top_p < 1.0:
        # Of equals, lower ids come first.
        order = np.lexsort((np.arange(len(scores)), -scores))
        before = np.concatenate(([0.0], softmax(scores)[order].cumsum()[:-1]))
        out = order[(before >= top_p) & (np.arange(len(order)) > 0)]
        scores = scores.copy()
        scores[out] = -np.inf
    probabilities = softmax(scores)
    min_p = parameters.get("min_p", 0.0)
    probabilities[probabilities < min_p * probabilities.max()] = 0.0
    return probabilities


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
