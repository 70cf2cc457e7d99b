// Does an attention kernel compute on this CPU what the reference kernel does? A build for
// the wrong machine or a faulty CPU shows here rather than in a model's text.
#pragma once

#include "common/base/status.h"
#include "kernels/dispatch.h"

namespace fastdecode::rworker {

// Runs steps of several shapes and lengths through an AttentionService with either kernel.
// kDataLoss, with the first number that differs, when they disagree.
Status CheckKernel(const kernels::AttentionKernel& kernel);

}  // namespace fastdecode::rworker
