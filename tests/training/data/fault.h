#pragma once

#include <functional>
#include <string>

#include "engine/base/error.h"

namespace tandem::training {

// The message of the action's Error, or "" without one.
inline std::string Fault(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tandem::training
