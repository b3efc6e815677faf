#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/cli/verbs.h"
#include "training/spec/explain.h"

namespace tandem::server {
namespace {

struct ConfigFlags {
  std::string key;
  std::string spec;
  std::vector<std::string> overrides;
};

}  // namespace

void AddConfig(CLI::App& command, int&) {
  const auto flags = std::make_shared<ConfigFlags>();
  command.require_subcommand(1);

  CLI::App* explain = command.add_subcommand("explain", "explain a key of a training spec");
  explain->add_option("key", flags->key, "key, or its name in MaxText (default: list all keys)");
  explain->add_option("spec", flags->spec,
                      "training spec: also print the key's value there and its origin");
  explain->add_option("overrides", flags->overrides, "key=value words that override the spec");
  explain->callback([flags] {
    if (flags->key.empty()) {
      std::fputs(training::ListKeys().c_str(), stdout);
      return;
    }
    std::optional<training::TrainSpec> spec;
    if (!flags->spec.empty()) spec = training::LoadTrainSpec(flags->spec, flags->overrides);
    std::fputs(training::ExplainKey(flags->key, spec ? &*spec : nullptr).c_str(), stdout);
  });

  CLI::App* show = command.add_subcommand("show", "print every value of a training spec");
  show->add_option("spec", flags->spec, "training spec (YAML or JSON)")->required();
  show->add_option("overrides", flags->overrides, "key=value words that override the spec");
  show->callback([flags] {
    const auto spec = training::LoadTrainSpec(flags->spec, flags->overrides);
    std::fputs(training::ShowSpec(spec).c_str(), stdout);
  });
}

}  // namespace tandem::server
