# /// script
# dependencies = ["magika==1.0.3"]
# ///
"""Classify files by their bytes: Magika, unedited, on Sardonyx."""

import sardonyx.as_onnxruntime

sardonyx.as_onnxruntime.install()

from magika import Magika  # noqa: E402

magika = Magika()
for content in (
    b"import os\n\n\ndef main():\n    print(os.getcwd(), os.sep)\n\n\nmain()\n" * 3,
    b"SELECT name, count(*) FROM people WHERE age > 30 GROUP BY name ORDER BY 2 DESC;\n" * 5,
    b"<html><head><title>Page</title></head><body><p>Words.</p></body></html>\n" * 5,
):
    found = magika.identify_bytes(content)
    print(f"{found.score:.2f}  {found.output.label}")
