"""Real English prose that every Python carries: the language reference, `pydoc_data.topics`.

About 460 KB, human-written, mixed with code samples; no download, no licence to carry along."""

from pydoc_data.topics import topics


def text(characters):
    joined = "\n\n".join(topics[name] for name in sorted(topics))
    if len(joined) < characters:
        raise RuntimeError(f"pydoc_data.topics has only {len(joined)} characters")
    return joined[:characters]


if __name__ == "__main__":
    print(text(characters=200_000))
