// Does a kernel compute on this CPU what the reference does? A build for the wrong machine
// or a faulty CPU shows here, in milliseconds at every start, rather than in a model's text.
#pragma once

#include <string>

#include "kernels/attention_kernel.h"

namespace fastdecode::kernels {

// Stores and attends with either, over several shapes and lengths and every format, in one
// range of the context and in two. Empty: they agree; else what was computed where.
std::string FaultOfKernel(const AttentionKernel& kernel);

}  // namespace fastdecode::kernels
