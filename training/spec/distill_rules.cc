#include "training/spec/distill_rules.h"

#include <optional>

#include "engine/base/url.h"

namespace tandem::training {
namespace {

void CheckTeacherUrl(const std::string& text, std::vector<std::string>* faults) {
  const std::string key = "distill.teacher_url: ";
  if (text.empty()) {
    faults->push_back(key +
                      "must be given for train.distill: the base URL of an OpenAI-compatible "
                      "server, such as http://127.0.0.1:8080/v1");
    return;
  }
  const std::optional<Url> url = ParseUrl(text);
  // Messages must not show what may be a key.
  if (!url) {
    faults->push_back(key + "must be an http or https URL, such as http://127.0.0.1:8080/v1");
  } else if (!url->user_info.empty()) {
    faults->push_back(key +
                      "must not hold a key, since specs are recorded: set TANDEM_TEACHER_KEY or "
                      "distill.teacher_key_file");
  } else if (url->target.find('?') != std::string::npos) {
    faults->push_back(key + "must not have a query");
  }
}

}  // namespace

std::vector<std::string> DistillFaults(TrainSpec* spec) {
  std::vector<std::string> faults;
  if (!spec->is_distill()) {
    for (const char* key :
         {"distill.teacher_url", "distill.teacher_model", "distill.teacher_key_file",
          "distill.alpha", "distill.temperature", "distill.top_k"}) {
      if (!spec->origins.contains(key)) continue;
      spec->notes.push_back(std::string(key) +
                            " has no effect: it applies to kind train.distill only");
    }
    return faults;
  }
  CheckTeacherUrl(spec->distill.teacher_url, &faults);
  const DataSection& data = spec->data;
  if (data.packing == Packing::kConcatThenSplit) {
    faults.push_back(
        "data.packing: must not be concat_then_split for train.distill, since the teacher reads "
        "whole samples; use best_fit, first_fit or none");
  }
  if (data.overflow == Overflow::kSplit) {
    faults.push_back(
        "data.overflow: must not be split for train.distill, since the teacher reads whole "
        "samples; use truncate, truncate_left, drop or error");
  }
  if (data.loss_mask == LossMask::kAll) {
    faults.push_back(
        "data.loss_mask: must not be all for train.distill: the teacher has no padding");
  }
  if (!spec->train.loss_library.empty()) {
    faults.push_back(
        "train.loss_library: must not be set for train.distill, which has its own loss");
  }
  return faults;
}

}  // namespace tandem::training
