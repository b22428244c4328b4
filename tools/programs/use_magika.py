# /// script
# dependencies = ["magika==1.0.3"]
# ///
"""magika: the kind of a file by its bytes."""

import json
import random

from magika import Magika

CONTENTS = [
    b"import os\n\n\ndef main():\n    print(os.getcwd(), os.sep)\n\n\nmain()\n" * 3,
    b'#include <stdio.h>\nint main(void) { printf("%d\\n", 42); return 0; }\n' * 4,
    json.dumps({"numbers": list(range(200)), "name": "value"}).encode(),
    b"<html><head><title>Page</title></head><body><p>Words.</p></body></html>\n" * 5,
    b"SELECT name, count(*) FROM people WHERE age > 30 GROUP BY name ORDER BY 2 DESC;\n" * 5,
    b"The quick brown fox jumps over the lazy dog, as it does every day.\n" * 20,
    random.Random(1).randbytes(5000),
]


def make():
    return Magika()


def use(magika):
    results = [magika.identify_bytes(content) for content in CONTENTS]
    return [{"label": r.output.label, "score": r.score} for r in results]
