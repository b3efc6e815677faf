#pragma once

#include <string>
#include <string_view>

#include "engine/chat/answers/json_scanner.h"

namespace tandem::engine {

// Reads the input of a custom tool out of the arguments in which models write it:
// {"input": "text"}. Incremental.
class CustomInput {
 public:
  // Takes the next bytes of the arguments, which are valid JSON. Returns the next bytes of the
  // input: whole characters if the arguments are. An input that is no text passes as JSON.
  std::string Push(std::string_view arguments);

 private:
  void Next(char byte, std::string& out);
  void InText(char byte, std::string& out);

  JsonScanner scanner_;
  std::string key_;
  std::string escape_;  // the bytes of an escape that is not complete
  bool is_in_value_ = false;
  bool is_text_ = false;
  bool is_done_ = false;
};

}  // namespace tandem::engine
