"""What builds for Windows say of themselves."""

use_cuda = False
vs2019 = False
