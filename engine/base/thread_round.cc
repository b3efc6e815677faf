#include "engine/base/thread_round.h"

#include "engine/base/log.h"

namespace tandem {

void LogFailedRound(const char* round, const std::exception_ptr& fault) noexcept {
  FaultOf([&] {
    spdlog::error("round_failed round=\"{}\" reason=\"{}\"", round, ToError(fault).what());
  });
}

}  // namespace tandem
