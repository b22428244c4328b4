"""Cases of string ops, n-grams and encoded images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tests.op_cases import Case, case, f32, fails, i64, of

try:
    from PIL import Image
except ImportError:  # rows of images are skipped where they run: the op needs it too
    Image = None

LOCALE = "onnxruntime needs a locale that machines may lack"


def text(*words: str) -> Any:
    return of(words, object)


def table(*rows: tuple[str, ...]) -> Any:
    return of(rows, object)


STRINGS = [
    case("StringConcat", text("a", "b"), text("x", "ü")),
    case("StringConcat", text("a", ""), table(("x",), ("y",))),
    case("StringConcat", of("a", object), of("b", object)),
    case("StringConcat", np.zeros((0, 2), object), text("x", "y")),
    fails("StringConcat", text("a", "b"), text("x", "y", "z"), match="2 and 3"),
    fails("StringConcat", f32(2), f32(2), match="is f32; supported types: str"),
    *(
        case("StringSplit", text(" a b  c ", "a-b--c", "", "  "), outputs=2, **how)
        for how in (
            {},
            {"maxsplit": 1},
            {"maxsplit": 0},
            {"delimiter": ""},
            {"delimiter": "-"},
            {"delimiter": "-", "maxsplit": 1},
            {"delimiter": "--"},
        )
    ),
    case("StringSplit", table(("a b", "c"), ("", "d e f")), outputs=2),
    case("StringSplit", of("a b", object), outputs=2),
    case("StringSplit", np.zeros((2, 0), object), outputs=2),
    case(
        "StringSplit",
        text("a\tb\nc"),
        outputs=2,
        expect=(table(("a", "b", "c")), of([3], np.int64)),
        why="onnxruntime takes spaces for the only whitespace",
    ),
    case("RegexFullMatch", text("abc", "ab", "xabc", "", "äb"), pattern=r"\w*b.?"),
    case("RegexFullMatch", table(("a1", "b"), ("c2", "")), pattern="[a-z][0-9]"),
    case("RegexFullMatch", np.zeros((0,), object), pattern="a"),
    fails("RegexFullMatch", text("a"), pattern="(", match=r"'\(' is not valid in RE2"),
    fails("RegexFullMatch", text("a"), match="has no pattern"),
]


def clean(words: Any, want: Any, **attrs: Any) -> Case:
    return case("StringNormalizer", words, **attrs, expect=(want,), why=LOCALE)


DAYS = text("Monday", "tuesday", "MONDAY")
NORMALIZED = [
    clean(DAYS, DAYS),
    clean(DAYS, text("tuesday"), stopwords=["monday"]),
    clean(DAYS, text("Monday", "tuesday"), stopwords=["MONDAY"], is_case_sensitive=1),
    clean(DAYS, text("TUESDAY"), stopwords=["monday"], case_change_action="UPPER"),
    clean(DAYS, text("monday", "tuesday", "monday"), case_change_action="LOWER"),
    clean(DAYS, text(""), stopwords=["monday", "tuesday"]),
    clean(table(("a", "b")), table(("b",)), stopwords=["a"]),
    clean(table(("a", "a")), table(("",)), stopwords=["a"]),
    clean(text("ÉΣß", "ǆ"), text("éσß", "ǆ"), case_change_action="LOWER"),
    clean(text("éσß", "ᾳ"), text("ÉΣß", "ᾼ"), case_change_action="UPPER"),
    clean(text("iI"), text("II"), case_change_action="UPPER", locale="en_US.UTF-8"),
    clean(text("iI"), text("\u0130I"), case_change_action="UPPER", locale="tr_TR.UTF-8"),
    clean(text("iI\u0130"), text("i\u0131i"), case_change_action="LOWER", locale="tr_TR.UTF-8"),
    fails("StringNormalizer", table(("a",), ("b",)), match=r"\[C\] or \[1, C\]: 2 and 1"),
    fails("StringNormalizer", of("a", object), match=r"\[C\] or \[1, C\], got str\[\]"),
    fails(
        "StringNormalizer",
        text("a"),
        case_change_action="TITLE",
        match="case_change_action must be .*got TITLE",
    ),
]

POOL = {
    "mode": "TF", "ngram_counts": [0, 2, 6], "ngram_indexes": [0, 3, 2, 1, 4],
    "pool_int64s": [5, 6, 5, 6, 6, 7, 5, 6, 7], "min_gram_length": 1, "max_gram_length": 3,
    "max_skip_count": 0,
}  # fmt: skip
WORDS = {k: v for k, v in POOL.items() if k != "pool_int64s"} | {
    "pool_strings": list("abab" + "bcabc")
}
SCALES = {"weights": [1.0, 10.0, 100.0, 1000.0, 0.5]}
TOKENS = of([5, 6, 7, 5, 5, 6, 9, 7, 7], np.int64)
BATCH = of([[5, 6, 7, 8], [6, 6, 7, 7], [0, 0, 0, 0]], np.int64)


def grams(x: Any, **changes: Any) -> Case:
    return case("TfIdfVectorizer", x, attrs={**POOL, **changes})


def refused(match: str, x: Any = TOKENS, **changes: Any) -> Case:
    return fails("TfIdfVectorizer", x, attrs={**POOL, **changes}, match=match)


GRAMS = [
    *(grams(x, max_skip_count=s) for x in (TOKENS, BATCH) for s in (0, 1, 2, 100)),
    *(
        grams(TOKENS, min_gram_length=a, max_gram_length=b)
        for a, b in ((1, 1), (2, 2), (1, 2), (3, 3))
    ),
    *(grams(BATCH, mode=m, max_skip_count=1) for m in ("IDF", "TFIDF")),
    *(grams(BATCH, mode=m, max_skip_count=1, **SCALES) for m in ("TF", "IDF", "TFIDF")),
    grams(TOKENS, ngram_indexes=[0, 0, 2, 7, 4], mode="TFIDF", **SCALES),
    grams(TOKENS.astype(np.int32)),
    *(grams(i64(*shape)) for shape in ((0,), (2, 0), (1, 1))),
    case("TfIdfVectorizer", text("a", "b", "c", "b", "c"), attrs={**WORDS, "max_skip_count": 1}),
    case("TfIdfVectorizer", table(("a", "b"), ("ü", "a")), attrs=WORDS),
    case(
        "TfIdfVectorizer", i64(0, 3), attrs=POOL, expect=(f32(0, 5),), why="refused by onnxruntime"
    ),
    refused("mode must be .*got BM25", mode="BM25"),
    refused("1-grams twice", pool_int64s=[5, 5, 5, 6, 6, 7, 5, 6, 7]),
    refused("puts 2-grams at 2 to 5", ngram_counts=[0, 2, 5]),
    refused("5 n-grams, and ngram_indexes has 4", ngram_indexes=[0, 1, 2, 3]),
    refused("5 n-grams, and weights has 1", weights=[1.0]),
    refused("ngram_indexes go from -1", ngram_indexes=[0, 1, 2, 3, -1]),
    refused("counts 2- to 1-grams", min_gram_length=2, max_gram_length=1),
    refused("its pool has 1- to 3-grams", max_gram_length=4),
    refused("needs pool_strings", text("a")),
    refused("one row of tokens, or several", i64(1, 2, 3)),
]


def encoded(format_: str, mode: str = "RGB", **how: Any) -> tuple[Any, Any]:
    """A small picture in a format, and its pixels."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (5, 7, 3) if mode == "RGB" else (5, 7)).astype(np.uint8)
    if Image is None:
        return np.zeros(1, np.uint8), pixels
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format_, **how)
    return np.frombuffer(stream.getvalue(), np.uint8), pixels


def decode(format_: str, pixel_format: str, change: Any, mode: str = "RGB", **how: Any) -> Case:
    stream, pixels = encoded(format_, mode, **how)
    return case(
        "ImageDecoder", stream, pixel_format=pixel_format, expect=(change(pixels),), why="no oracle"
    )


def gray(pixels: Any) -> Any:
    if Image is None:
        return pixels
    return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]


HUGE = np.frombuffer(b"P6 60000 60000 255\n" + bytes(64), np.uint8)
IMAGES = [
    *(decode(f, "RGB", lambda p: p) for f in ("PNG", "BMP", "TIFF", "PPM")),
    decode("WEBP", "RGB", lambda p: p, lossless=True),
    decode("PNG", "BGR", lambda p: p[:, :, ::-1]),
    decode("PNG", "Grayscale", gray),
    decode("PNG", "RGB", lambda p: np.repeat(p[:, :, None], 3, axis=2), mode="L"),
    case(
        "ImageDecoder",
        of([1, 2, 3], np.uint8),
        expect=(np.zeros((0, 0, 3), np.uint8),),
        why="broken",
    ),
    case(
        "ImageDecoder",
        encoded("PNG")[0][:60],
        expect=(np.zeros((0, 0, 3), np.uint8),),
        why="cut off",
    ),
    fails("ImageDecoder", HUGE, match="the image is too large"),
    fails(
        "ImageDecoder",
        of([1], np.uint8),
        pixel_format="CMYK",
        match="pixel_format must be .*got CMYK",
    ),
]

CASES = [*STRINGS, *NORMALIZED, *GRAMS, *IMAGES]
