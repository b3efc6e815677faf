#include "training/plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/available_memory.h"
#include "engine/base/error.h"

namespace tandem::training {
namespace {

struct Candidate {
  std::string words;
  bool same_result = true;
  std::function<void(TrainSpec&)> apply;
};

Candidate Remat(RematPolicy policy, const std::string& words) {
  return {words, true, [policy](TrainSpec& spec) { spec.train.remat.policy = policy; }};
}

// Fewer rows per micro-batch and more micro-batches: the same step.
std::vector<Candidate> FewerRows(const TrainSpec& spec) {
  std::vector<Candidate> list;
  const int64_t rows = spec.train.per_device_batch_size;
  for (int64_t parts = 2; parts <= rows; ++parts) {
    if (rows % parts != 0) continue;
    const int64_t micro_batches = spec.train.gradient_accumulation_steps * parts;
    list.push_back({"train.per_device_batch_size=" + std::to_string(rows / parts) +
                        " train.gradient_accumulation_steps=" + std::to_string(micro_batches),
                    true, [=](TrainSpec& changed) {
                      changed.train.per_device_batch_size = rows / parts;
                      changed.train.gradient_accumulation_steps = micro_batches;
                    }});
  }
  return list;
}

std::vector<Candidate> Combined(const std::vector<Candidate>& first,
                                const std::vector<Candidate>& second) {
  std::vector<Candidate> list;
  for (const Candidate& a : first) {
    for (const Candidate& b : second) {
      list.push_back(
          {a.words + " " + b.words, a.same_result && b.same_result, [a, b](TrainSpec& spec) {
             a.apply(spec);
             b.apply(spec);
           }});
    }
  }
  return list;
}

// Possible changes, each alone and in combinations.
std::vector<Candidate> Candidates(const TrainSpec& spec) {
  const std::vector<Candidate> remat = {Remat(RematPolicy::kMinimal, "train.remat=minimal"),
                                        Remat(RematPolicy::kFull, "train.remat=full")};
  const std::vector<Candidate> rows = FewerRows(spec);
  std::vector<Candidate> others;
  if (spec.train.optimizer.state != MomentState::k8Bit) {
    others.push_back({"train.optimizer.state=8bit", false, [](TrainSpec& changed) {
                        changed.train.optimizer.state = MomentState::k8Bit;
                      }});
  }
  const bool can_adapt = !spec.model.load_parameters_path.empty();
  if (can_adapt && !spec.lora.enable) {
    others.push_back({"lora.enable=true", false, [](TrainSpec& changed) {
                        changed.lora.enable = true;
                        changed.model.trainable.clear();
                      }});
  }
  if (can_adapt && spec.compute == engine::DType::kBF16 && spec.lora.base != LoraBase::kInt4) {
    others.push_back(
        {std::string(spec.lora.enable ? "" : "lora.enable=true ") + "lora.base_dtype=int4", false,
         [](TrainSpec& changed) {
           changed.lora.enable = true;
           changed.lora.base = LoraBase::kInt4;
           changed.model.trainable.clear();
         }});
  }
  std::vector<Candidate> list = remat;
  const auto append = [&list](const std::vector<Candidate>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  append(rows);
  append(Combined(remat, rows));
  append(others);
  append(Combined(others, {remat.back()}));
  if (!rows.empty()) append(Combined(Combined(others, {remat.back()}), {rows.back()}));
  return list;
}

double HardwareFlops(const MemoryNeeds& needs, int64_t micro_batches) {
  return static_cast<double>(needs.program.training_flops() + needs.program.recompute_flops()) *
         static_cast<double>(micro_batches);
}

// The needs of a changed spec. Absent when the spec is invalid, for example when the model has no
// linear layer that an adapter's pattern matches.
std::optional<MemoryNeeds> NeedsOf(const TrainSpec& spec, const ModelFiles& files) {
  std::optional<MemoryNeeds> needs;
  ErrorOf([&] { needs = FindMemoryNeeds(spec, files); });
  return needs;
}

void AddChanges(const TrainSpec& spec, const ModelFiles& files, TrainingPlan* plan) {
  const double flops = plan->step_flops + plan->step_recomputed_flops;
  for (const Candidate& candidate : Candidates(spec)) {
    TrainSpec changed = spec;
    candidate.apply(changed);
    const std::optional<MemoryNeeds> needs = NeedsOf(changed, files);
    if (!needs) continue;
    const PlannedChange change{
        candidate.words, needs->total_bytes(),
        HardwareFlops(*needs, changed.train.gradient_accumulation_steps) / flops,
        candidate.same_result};
    if (plan->smallest.words.empty() || change.total_bytes < plan->smallest.total_bytes) {
      plan->smallest = change;
    }
    if (change.total_bytes <= plan->budget_bytes) plan->changes.push_back(change);
  }
  std::stable_sort(plan->changes.begin(), plan->changes.end(),
                   [](const PlannedChange& a, const PlannedChange& b) {
                     if (a.same_result != b.same_result) return a.same_result;
                     return a.time < b.time;
                   });
  if (plan->changes.size() > 3) plan->changes.resize(3);
}

std::string Bytes(int64_t bytes) {
  char text[48];
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) {
    std::snprintf(text, sizeof text, "%.2f GiB", value / 0x1p30);
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", value / 0x1p20);
  }
  return text;
}

std::string Duration(double seconds) {
  char text[48];
  if (seconds < 120) {
    std::snprintf(text, sizeof text, "%.0f s", seconds);
  } else if (seconds < 7200) {
    std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  }
  return text;
}

std::string DescribeChange(const PlannedChange& change) {
  char time[48];
  std::snprintf(time, sizeof time, "%.2f x the work", change.time);
  return change.words + ": " + Bytes(change.total_bytes) + ", " + time +
         (change.same_result ? "" : ", changes the result");
}

std::string DescribeWaysOut(const TrainingPlan& plan) {
  std::string text;
  for (const PlannedChange& change : plan.changes) text += "  " + DescribeChange(change) + "\n";
  if (plan.changes.empty() && !plan.smallest.words.empty()) {
    text += "  no change is enough; the smallest is " + DescribeChange(plan.smallest) + "\n";
  }
  return text;
}

}  // namespace

TrainingPlan PlanTraining(const TrainSpec& spec, const PlanOptions& options) {
  const ModelFiles files = LoadModelFiles(spec);
  TrainingPlan plan;
  plan.memory = FindMemoryNeeds(spec, files);
  const Program& program = plan.memory.program;
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    const int64_t elements = program.weight_specs[i].n * program.weight_specs[i].k;
    plan.parameters += elements;
    if (program.trained[i]) plan.trained += elements;
  }
  plan.notes = spec.notes;
  plan.flops_per_second = options.flops_per_second;
  plan.steps = spec.train.steps;
  const auto micro_batches = static_cast<double>(spec.train.gradient_accumulation_steps);
  plan.step_flops = static_cast<double>(program.training_flops()) * micro_batches;
  plan.step_recomputed_flops = static_cast<double>(program.recompute_flops()) * micro_batches;
  if (spec.is_dpo()) {
    plan.reference_flops = static_cast<double>(program.forward_flops()) * micro_batches *
                           static_cast<double>(plan.steps);
  }
  if (options.flops_per_second > 0) {
    plan.seconds =
        (static_cast<double>(plan.steps) * (plan.step_flops + plan.step_recomputed_flops) +
         plan.reference_flops) /
        (options.flops_per_second * kUsualShareOfRoof);
  }
  plan.budget_bytes = options.budget_bytes > 0              ? options.budget_bytes
                      : spec.resources.memory_max_bytes > 0 ? spec.resources.memory_max_bytes
                                                            : AvailableMemoryBytes();
  if (!plan.fits()) AddChanges(spec, files, &plan);
  return plan;
}

std::string PlanJson(const TrainingPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json bytes = Json::object();
  for (const MemoryClass& one : plan.memory.classes) bytes[one.name] = one.bytes;
  Json changes = Json::array();
  for (const PlannedChange& change : plan.changes) {
    changes.push_back({{"words", change.words},
                       {"total_bytes", change.total_bytes},
                       {"time", change.time},
                       {"same_result", change.same_result}});
  }
  const Json json = {
      {"parameters", plan.parameters},
      {"trained", plan.trained},
      {"bytes", bytes},
      {"total_bytes", plan.memory.total_bytes()},
      {"budget_bytes", plan.budget_bytes},
      {"checkpoint_copy_bytes", plan.memory.checkpoint_copy_bytes},
      {"steps", plan.steps},
      {"flops", static_cast<double>(plan.steps) * plan.step_flops},
      {"recomputed_flops", static_cast<double>(plan.steps) * plan.step_recomputed_flops},
      {"reference_flops", plan.reference_flops},
      {"seconds", plan.seconds > 0 ? Json(plan.seconds) : Json(nullptr)},
      {"speed",
       {{"peak_flops_per_second", plan.flops_per_second > 0 ? Json(plan.flops_per_second) : Json()},
        {"assumed_share", kUsualShareOfRoof}}},
      {"memory_refusal", plan.refusal.empty() ? Json() : Json(plan.refusal)},
      {"fits", plan.fits()},
      {"changes", changes},
      {"notes", plan.notes}};
  return json.dump();
}

std::string DescribePlan(const TrainingPlan& plan) {
  std::string text = std::to_string(plan.parameters) + " parameters, " +
                     std::to_string(plan.trained) + " trained\n\nmemory\n";
  for (const MemoryClass& one : plan.memory.classes) {
    char line[80];
    std::snprintf(line, sizeof line, "  %-12s %12s\n", one.name.c_str(), Bytes(one.bytes).c_str());
    text += line;
  }
  text += "  in all " + Bytes(plan.memory.total_bytes()) + " of " + Bytes(plan.budget_bytes) +
          (plan.fits() ? ": fits\n"
                       : ": does NOT fit. Changes that would fit:\n" + DescribeWaysOut(plan));
  if (plan.memory.checkpoint_copy_bytes > 0) {
    text += "  checkpoints during training copy " + Bytes(plan.memory.checkpoint_copy_bytes) +
            " more; without that memory, training waits for each checkpoint\n";
  }
  char line[160];
  std::snprintf(line, sizeof line, "\n%lld steps of %.3f TFLOP", static_cast<long long>(plan.steps),
                plan.step_flops / 1e12);
  text += line;
  if (plan.step_recomputed_flops > 0) {
    std::snprintf(line, sizeof line, " and %.3f recomputed", plan.step_recomputed_flops / 1e12);
    text += line;
  }
  if (plan.reference_flops > 0) {
    std::snprintf(line, sizeof line, ", after a reference of at most %.3f",
                  plan.reference_flops / 1e12);
    text += line;
  }
  if (plan.seconds > 0) {
    text += ": about " + Duration(plan.seconds) + " at half of the measured roof";
  }
  text += "\n";
  for (const std::string& note : plan.notes) text += "note: " + note + "\n";
  return text;
}

std::string DescribePolicies(const TrainSpec& given) {
  const ModelFiles files = LoadModelFiles(given);
  std::string table = "train.remat                         activations      recomputed\n";
  for (const std::string_view name : RematPolicyNames()) {
    TrainSpec spec = given;
    spec.train.remat.policy = *FindRematPolicy(name);
    const bool is_chosen = spec.train.remat.policy == given.train.remat.policy;
    if (spec.train.remat.policy == RematPolicy::kAuto && !is_chosen) continue;
    const Program program = FindMemoryNeeds(spec, files).program;
    std::string label(name);
    if (spec.train.remat.policy == RematPolicy::kEveryK) {
      label += " (" + std::to_string(spec.train.remat.every) + ")";
    }
    char line[160];
    std::snprintf(line, sizeof line, "%c %-32s %12s %9.3f TFLOP\n", is_chosen ? '*' : ' ',
                  label.c_str(), Bytes(program.arena_bytes).c_str(),
                  static_cast<double>(program.recompute_flops()) / 1e12);
    table += line;
  }
  return table;
}

void RefuseWhatCannotFit(const TrainSpec& spec) {
  const bool has_ceiling = spec.resources.memory_max_bytes > 0;
  const ModelFiles files = LoadModelFiles(spec);
  TrainingPlan plan;
  plan.memory = FindMemoryNeeds(spec, files);
  plan.budget_bytes = has_ceiling ? spec.resources.memory_max_bytes
                                  : AvailableMemoryBytes() / spec.parallel.ranks_on_host;
  if (!has_ceiling) {
    for (const MemoryClass& one : plan.memory.classes) {
      if (one.name == "base") plan.budget_bytes += one.bytes;
    }
  }
  if (plan.fits()) return;
  plan = PlanTraining(spec, {.budget_bytes = plan.budget_bytes});
  throw Error(ErrorCode::kResourceExhausted,
              (has_ceiling ? "resources.memory_max_bytes allows " : "the machine has ") +
                  Bytes(plan.budget_bytes) + (has_ceiling ? "" : " for this run") +
                  ", but the run needs " + Bytes(plan.memory.total_bytes()) +
                  " (see tandem plan). " +
                  (has_ceiling ? "" : "Set resources.memory_max_bytes for a different limit. ") +
                  "Changes that would fit:\n" + DescribeWaysOut(plan));
}

}  // namespace tandem::training
