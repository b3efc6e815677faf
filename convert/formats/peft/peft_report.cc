#include <cmath>
#include <nlohmann/json.hpp>

#include "convert/formats/peft/peft.h"

namespace tandem::convert {
namespace {

double Ratio(double part2, double whole2) { return whole2 > 0 ? std::sqrt(part2 / whole2) : 0; }

}  // namespace

double ExtractedWeight::RelativeError() const { return Ratio(error2, change2); }
double ExtractedWeight::RelativeChange() const { return Ratio(change2, base2); }

std::string PeftReport::Json() const {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  int64_t modules = 0, others = 0;
  ExtractedWeight all, lost;  // sums over modules and over the other weights
  const ExtractedWeight* worst = nullptr;
  for (const ExtractedWeight& weight : weights) {
    list.push_back({{"name", weight.name},
                    {"module", weight.has_module},
                    {"relative_change", weight.RelativeChange()},
                    {"relative_error", weight.RelativeError()}});
    (weight.has_module ? modules : others) += 1;
    ExtractedWeight& sum = weight.has_module ? all : lost;
    sum.change2 += weight.change2;
    sum.base2 += weight.base2;
    sum.error2 += weight.error2;
    if (!weight.has_module) continue;
    if (worst == nullptr || weight.RelativeError() > worst->RelativeError()) worst = &weight;
  }
  Json out = {{"rank", rank},
              {"alpha", alpha},
              {"modules", modules},
              {"relative_error", all.RelativeError()},
              {"worst_tensor", worst == nullptr ? "" : worst->name},
              {"worst_relative_error", worst == nullptr ? 0 : worst->RelativeError()},
              {"not_expressed",
               {{"tensors", others},
                {"relative_change", lost.RelativeChange()},
                {"share_of_change", Ratio(lost.change2, lost.change2 + all.change2)}}},
              {"unchanged", unchanged},
              {"warnings", warnings},
              {"tensors", std::move(list)}};
  return out.dump();
}

}  // namespace tandem::convert
