#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/disk_full.h"

namespace tandem::engine {

// Runs `action` and returns its error when the disk or the file system refused: a kIo, or an
// exception of std::filesystem as kIo. A full disk has the reason kDiskFullReason. All other
// exceptions pass.
template <class Action>
std::optional<Error> DiskErrorOf(Action&& action) {
  std::optional<Error> error;
  const auto fault = ExceptionOf<std::filesystem::filesystem_error>(
      [&] { error = ErrorOf({ErrorCode::kIo}, std::forward<Action>(action)); });
  if (!fault) return error;
  return Error(ErrorCode::kIo, fault->what())
      .WithReason(IsDiskFull(fault->code().value()) ? kDiskFullReason : "");
}

}  // namespace tandem::engine
