#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tandem::training {

// An SVG picture of losses by step. Averages neighbours, so that many steps stay a small file.
std::string DrawLosses(const std::map<int64_t, double>& training,
                       const std::map<int64_t, double>& validation);

}  // namespace tandem::training
