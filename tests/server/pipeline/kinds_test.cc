// The specs of pipeline jobs as the jobs' processes read them.

#include "server/pipeline/kinds.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "server/pipeline/spec.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

PipelineOrder OrderOf(const std::string& keys, const std::string& dir) {
  const std::string model = (tests::SourceDir() / "tests/golden/gemma2-tiny").string();
  const PipelineSpec spec = ParsePipelineSpec(
      "jobs: {a: {kind: convert, from: " + model + ", to: peft, base: " + model + keys + "}}",
      "p.yaml", {}, {[](const char*) -> const char* { return nullptr; }});
  return MakeOrder(spec, *spec.Find("a"), dir, {}, {}, /*are_expected=*/true);
}

TEST(PipelineKinds, AnAdapterThatIsMadeOfAModelHasARankAndPerhapsAnAlpha) {
  const tests::TemporaryDir dir;
  const auto spec_of = [&](const std::string& keys) {
    return nlohmann::json::parse(OrderOf(keys, dir.path().string()).spec_json);
  };
  const nlohmann::json both = spec_of(", rank: 8, alpha: 12.5");
  EXPECT_EQ(both["format"], "peft");
  EXPECT_EQ(both["rank"], 8);
  EXPECT_EQ(both["alpha"], 12.5);
  EXPECT_FALSE(spec_of(", rank: 8").contains("alpha"));
  for (const auto& [keys, part] : {std::pair{"", "jobs.a.rank: peft needs a rank"},
                                   std::pair{", rank: 0", "jobs.a.rank: must be a number"},
                                   std::pair{", rank: 1.5", "jobs.a.rank: must be a whole"},
                                   std::pair{", rank: 1, alpha: 0", "jobs.a.alpha: must be"}}) {
    try {
      OrderOf(keys, dir.path().string());
      ADD_FAILURE() << keys << " was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::server
