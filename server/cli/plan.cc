#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/cli/verbs.h"
#include "server/hub/pull.h"
#include "training/plan.h"

namespace tandem::server {

void AddPlan(CLI::App& command, int&) {
  struct Flags {
    std::string spec;
    std::vector<std::string> overrides;
  };
  const auto flags = std::make_shared<Flags>();
  command.add_option("spec", flags->spec, "training spec (YAML or JSON)")->required();
  command.add_option("overrides", flags->overrides, "key=value words on top of the spec");
  command.callback([flags] {
    training::TrainSpec spec = training::LoadTrainSpec(flags->spec, flags->overrides);
    spec.model.load_parameters_path = PulledPath(spec.model.load_parameters_path.string());
    spec.model.tokenizer_path = PulledPath(spec.model.tokenizer_path.string());
    std::fputs(training::DescribePlan(spec).c_str(), stdout);
  });
}

}  // namespace tandem::server
