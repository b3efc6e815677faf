#pragma once

#include <regex>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::training {

// A regular expression of a spec for names of weights or paths of modules. Throws kInvalidArgument
// naming the spec's key when it is invalid or too complex for a comparison.
class NamePattern {
 public:
  NamePattern(std::string key, std::string text) : key_(std::move(key)), text_(std::move(text)) {
    Guarded([&] { return regex_.assign(text_), true; });
  }

  bool IsIn(const std::string& name) const {
    return Guarded([&] { return std::regex_search(name, regex_); });
  }
  bool IsAllOf(const std::string& name) const {
    return Guarded([&] { return std::regex_match(name, regex_); });
  }

 private:
  template <class Action>
  bool Guarded(const Action& action) const {
    bool result = false;
    const auto error = ExceptionOf<std::regex_error>([&] { result = action(); });
    if (!error) return result;
    throw Error(ErrorCode::kInvalidArgument,
                key_ + ": \"" + text_ + "\" is not a valid regular expression: " + error->what());
  }

  std::string key_;
  std::string text_;
  std::regex regex_;
};

}  // namespace tandem::training
