#pragma once

#include <cstdint>

#include "training/optim/optimizer.h"

namespace tandem::training {

// Element i of a tensor's master, whole or split.
inline float MasterAt(const ParameterState& parameter, int64_t i) {
  return parameter.master != nullptr ? parameter.master[i]
                                     : JoinMaster(parameter.high[i], parameter.low[i]);
}
inline void SetMasterAt(const ParameterState& parameter, int64_t i, float value) {
  if (parameter.master != nullptr) {
    parameter.master[i] = value;
  } else {
    SplitMaster(value, &parameter.high[i], &parameter.low[i]);
  }
}

}  // namespace tandem::training
