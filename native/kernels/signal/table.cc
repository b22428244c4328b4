// The kernel table of the signal family. Kernels named `..._at_run` size their output from data.
#include "kernels/signal/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"dft", Accepts::contiguous, dft},
    {"dft_at_run", Accepts::contiguous, dft, dft_sizes},
    {"stft", Accepts::contiguous, stft},
    {"stft_at_run", Accepts::contiguous, stft, stft_sizes},
    {"cosine_window", Accepts::contiguous, cosine_window},
    {"cosine_window_at_run", Accepts::contiguous, cosine_window, cosine_window_sizes},
    {"mel_weights", Accepts::contiguous, mel_weights},
    {"mel_weights_at_run", Accepts::contiguous, mel_weights, mel_weights_sizes},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(signal, kKernels)
