#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tandem::training {

// An SVG picture of losses by step. Of many steps neighbours are averaged, so that the picture
// stays small.
std::string DrawLosses(const std::map<int64_t, double>& training,
                       const std::map<int64_t, double>& validation);

}  // namespace tandem::training
