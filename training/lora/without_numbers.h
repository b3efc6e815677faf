#pragma once

#include <cctype>
#include <string>

namespace tandem::training {

// "model.layers.3.mlp.up_proj" to "model.layers.*.mlp.up_proj".
inline std::string WithoutNumbers(const std::string& path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(path[i])) != 0;
    const bool begins = i == 0 || path[i - 1] == '.' || (!out.empty() && out.back() == '*');
    if (digit && begins) {
      if (out.empty() || out.back() != '*') out += '*';
    } else {
      out += path[i];
    }
  }
  return out;
}

}  // namespace tandem::training
