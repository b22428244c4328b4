// If, Loop and Scan: bodies are sequences with states of their own.
#include "exec/sequence.h"

namespace sdx {

Outcome run_control(const Control&, RunState&) { return {}; }

}  // namespace sdx
