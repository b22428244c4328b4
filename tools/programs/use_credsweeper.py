# /// script
# dependencies = ["credsweeper==1.19.5"]
# ///
"""credsweeper: finds passwords and keys in files, and how sure it is of each."""

import os
import tempfile

from credsweeper import CredSweeper, FilesProvider

LINES = """
password = "dk39sFSa#2lsPQ"
db_pass: "correct-horse-battery"
api_key = "AKIAQWADE5R42RDZ4JEM"
token = "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
secret_key = "8Hs7dg23jdhGSDy2398sdh7Gs"
username = "somebody"
password = "${PASSWORD}"
connect("postgres://admin:Zx8wqP2mLk@host:5432/db")
nonce = "4e1c5d8f7a2b"
"""


def make():
    return CredSweeper(use_filters=True, ml_threshold=0.2)


def use(sweeper):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "settings.py")
        with open(path, "w") as file:
            file.write(LINES)
        sweeper.credential_manager.candidates.clear()
        sweeper.run(FilesProvider([path]))
        found = sweeper.credential_manager.get_credentials()
    return [
        {"rule": c.rule_name, "line": c.line_data_list[0].line_num, "score": c.ml_probability}
        for c in sorted(found, key=lambda c: (c.line_data_list[0].line_num, c.rule_name))
    ]
