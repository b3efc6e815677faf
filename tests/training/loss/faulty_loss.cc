// Loss libraries with faults, one per value of FAULT.

#include <cstdio>
#include <cstring>

#include "training/loss/tandem_loss.h"

#if FAULT != 1  // 1: no symbol

namespace {

int state = 0;

void* Open(const char*, char*, size_t) { return &state; }

// Fails without a final zero in its words.
int Compute(void*, const TandemLossBatch*, double*, float*, char* error, size_t error_size) {
  std::memset(error, 'x', error_size);
  return 1;
}

constexpr TandemLossFunctions kFunctions = {
    FAULT == 2 ? TANDEM_LOSS_VERSION + 1 : TANDEM_LOSS_VERSION,  // 2: another version
    Open,
    FAULT == 3 ? nullptr : Compute,  // 3: a function is missing
    nullptr,
};

}  // namespace

const TandemLossFunctions* tandem_loss_functions() { return &kFunctions; }

#endif
