#include "training/spec/ignored_keys.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::training {
namespace {

// A key that only some kinds read.
template <class KindOf, class Section>
struct Scope {
  const char* key;
  std::vector<KindOf> kinds;
  const char* names;  // of these kinds
  bool (*is_default)(const Section& section);
};

const std::vector<Scope<OptimizerKind, OptimizerSpec>>& OptimizerScopes() {
  using Spec = OptimizerSpec;
  static const std::vector<OptimizerKind> adam = {OptimizerKind::kAdam, OptimizerKind::kAdamW,
                                                  OptimizerKind::kMuon};
  static const std::vector<OptimizerKind> decaying = {OptimizerKind::kAdamW, OptimizerKind::kLion,
                                                      OptimizerKind::kMuon};
  static const std::vector<OptimizerKind> moments = {OptimizerKind::kAdam, OptimizerKind::kAdamW,
                                                     OptimizerKind::kLion, OptimizerKind::kMuon};
  static const std::vector<Scope<OptimizerKind, Spec>> scopes = {
      {"train.optimizer.momentum",
       {OptimizerKind::kSgd},
       "sgd",
       [](const Spec& s) { return s.momentum == Spec().momentum; }},
      {"train.optimizer.b1", moments, "adam, adamw, lion and muon",
       [](const Spec& s) { return s.b1 == Spec().b1; }},
      {"train.optimizer.b2", moments, "adam, adamw, lion and muon",
       [](const Spec& s) { return s.b2 == Spec().b2; }},
      {"train.optimizer.eps", adam, "adam, adamw and muon",
       [](const Spec& s) { return s.eps == Spec().eps; }},
      {"train.optimizer.eps_root", adam, "adam, adamw and muon",
       [](const Spec& s) { return s.eps_root == Spec().eps_root; }},
      {"train.optimizer.weight_decay", decaying, "adamw, lion and muon",
       [](const Spec& s) { return s.weight_decay == Spec().weight_decay || s.weight_decay == 0; }},
      {"train.optimizer.decay_exclude", decaying, "adamw, lion and muon",
       [](const Spec& s) { return !s.decay_exclude; }},
      {"train.optimizer.muon_beta",
       {OptimizerKind::kMuon},
       "muon",
       [](const Spec& s) { return s.muon_beta == Spec().muon_beta; }},
      {"train.optimizer.muon_consistent_rms",
       {OptimizerKind::kMuon},
       "muon",
       [](const Spec& s) { return s.muon_consistent_rms == Spec().muon_consistent_rms; }},
  };
  return scopes;
}

const std::vector<Scope<ScheduleKind, ScheduleSpec>>& ScheduleScopes() {
  using Spec = ScheduleSpec;
  static const std::vector<ScheduleKind> moving = {ScheduleKind::kCosine, ScheduleKind::kLinear,
                                                   ScheduleKind::kWsd};
  static const std::vector<Scope<ScheduleKind, Spec>> scopes = {
      {"train.schedule.warmup_fraction", moving, "cosine, linear and wsd",
       [](const Spec& s) { return s.warmup_fraction == Spec().warmup_fraction; }},
      {"train.schedule.warmup_steps", moving, "cosine, linear and wsd",
       [](const Spec& s) { return s.warmup_steps <= 0; }},
      {"train.schedule.final_fraction", moving, "cosine, linear and wsd",
       [](const Spec& s) { return s.final_fraction == Spec().final_fraction; }},
      {"train.schedule.wsd_decay_fraction",
       {ScheduleKind::kWsd},
       "wsd",
       [](const Spec& s) { return s.decay_fraction == Spec().decay_fraction; }},
      {"train.schedule.wsd_decay_steps",
       {ScheduleKind::kWsd},
       "wsd",
       [](const Spec& s) { return s.decay_steps < 0; }},
      {"train.schedule.wsd_style",
       {ScheduleKind::kWsd},
       "wsd",
       [](const Spec& s) { return s.decay_style == Spec().decay_style; }},
  };
  return scopes;
}

template <class Scopes, class KindOf, class Section>
void Note(const Scopes& scopes, KindOf kind, const Section& section, const char* type,
          TrainSpec* spec) {
  for (const auto& scope : scopes) {
    const bool is_read =
        std::find(scope.kinds.begin(), scope.kinds.end(), kind) != scope.kinds.end();
    if (is_read || !spec->origins.contains(scope.key) || scope.is_default(section)) continue;
    spec->notes.push_back(std::string(scope.key) + " has no effect: it applies to " + type + " " +
                          scope.names + " only");
  }
}

}  // namespace

void NoteIgnoredKeys(TrainSpec* spec) {
  const OptimizerSpec optimizer = spec->train.optimizer;
  Note(OptimizerScopes(), optimizer.kind, optimizer, "train.optimizer.type", spec);
  const ScheduleSpec schedule = spec->train.schedule;
  Note(ScheduleScopes(), schedule.kind, schedule, "train.schedule.type", spec);
}

}  // namespace tandem::training
