#include "server/pipeline/spec.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace tandem::server {
namespace {

PipelineReading Environment(std::map<std::string, std::string> variables) {
  return {[variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  }};
}

PipelineSpec Parse(const std::string& text, std::vector<std::string> words = {},
                   std::map<std::string, std::string> variables = {}) {
  return ParsePipelineSpec(text, "p.yaml", words, Environment(std::move(variables)));
}

std::string FaultOf(const std::string& text, std::vector<std::string> words = {}) {
  try {
    Parse(text, std::move(words));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

std::string NamesOf(const PipelineSpec& spec) {
  std::string names;
  for (const PipelineJob& job : spec.jobs) names += job.name + " ";
  return names;
}

TEST(PipelineSpec, SortsJobsBehindWhatTheyNeedAndElseAsInTheFile) {
  const PipelineSpec spec = Parse(R"(
jobs:
  last: {kind: load, model: "${jobs.b.out}", needs: [a]}
  b: {kind: convert, from: x, to: hf}
  c: {kind: convert, from: x, to: hf}
  a: {kind: generate, model: "${jobs.c.out}", prompt: p}
)");

  EXPECT_EQ(NamesOf(spec), "b c a last ");
  EXPECT_EQ(spec.Find("last")->needs, (std::vector<std::string>{"a", "b"}));
}

TEST(PipelineSpec, ReplacesVariablesAlsoInDefaultsAndLeavesReferences) {
  const std::string text =
      "dir: ${BASE:-${HOME}/runs}/${ID:-local}\n"
      "jobs:\n  a: {kind: convert, from: '${FROM}', to: hf}\n"
      "  b: {kind: convert, from: '${jobs.a.out}', to: '${EMPTY:-hf}'}\n";

  const PipelineSpec spec = Parse(text, {}, {{"HOME", "/h"}, {"FROM", "m"}, {"EMPTY", ""}});

  EXPECT_EQ(spec.dir, "/h/runs/local");
  EXPECT_EQ(spec.Find("a")->Text("from"), "m");
  EXPECT_EQ(spec.Find("b")->Text("from"), "${jobs.a.out}");
  EXPECT_EQ(spec.Find("b")->Text("to"), "hf");
}

TEST(PipelineSpec, WordsChangeKeysOfAnyDepthAndLists) {
  const PipelineSpec spec =
      Parse("jobs:\n  t: {kind: train.sft, train: {steps: 5}, spec: x}\n",
            {"name=other", "jobs.t.train.steps=7", "jobs.t.data.columns=[a, b]"});

  EXPECT_EQ(spec.name, "other");
  EXPECT_EQ(spec.Find("t")->Text("train.steps"), "7");
  ASSERT_NE(spec.Find("t")->Find("data.columns"), nullptr);
  EXPECT_EQ(spec.Find("t")->Find("data.columns")->words, (std::vector<std::string>{"a", "b"}));
}

TEST(PipelineSpec, SaysAllThatIsWrongWithItsLine) {
  const std::string fault = FaultOf(R"(nmae: x
jobs:
  a:
    kind: convert
    form: x
    to: ${NOT_SET}
  b: {kind: train}
  c: {kind: generate, model: m, prompt: p, needs: [d]}
)");

  for (const char* part :
       {"p.yaml:1: 'nmae': unknown key; did you mean name?", "p.yaml:5: jobs.a.form: unknown key",
        "did you mean from?", "p.yaml:6: jobs.a.to: environment variable NOT_SET is not set",
        "p.yaml:7: jobs.b.kind: must be one of",
        "p.yaml:8: jobs.c.needs: the pipeline has no job 'd'"}) {
    EXPECT_NE(fault.find(part), std::string::npos) << part << "\nin\n" << fault;
  }
}

TEST(PipelineSpec, RefusesCirclesAndJobsThatNeedThemselves) {
  EXPECT_NE(FaultOf("jobs:\n"
                    "  x: {kind: generate, model: m, prompt: p, needs: [b]}\n"
                    "  a: {kind: generate, model: '${jobs.b.out}', prompt: p}\n"
                    "  b: {kind: generate, model: m, prompt: p, needs: [a]}\n")
                .find("circle: b needs a needs b"),
            std::string::npos);
  EXPECT_NE(FaultOf("jobs: {a: {kind: convert, from: '${jobs.a.out}', to: hf}}").find("a needs a"),
            std::string::npos);
}

TEST(PipelineSpec, RefusesTwoJobsOfOnePlace) {
  EXPECT_NE(FaultOf("jobs:\n  a: {kind: convert, from: x, to: hf, out: o}\n"
                    "  b: {kind: convert, from: x, to: hf, out: o}\n")
                .find("jobs.b.out: is also the out of jobs.a"),
            std::string::npos);
}

TEST(PipelineSpec, BoundsWhatAFileCanStandFor) {
  std::string text = "jobs:\n  a: &a {kind: train.sft, k: [x]}\n  b: {kind: train.sft, l0: &l0 [";
  for (int i = 0; i < 200; ++i) text += "x,";
  text += "]";
  for (int i = 1; i < 100; ++i) text += ", l" + std::to_string(i) + ": *l0";
  text += "}\n";

  EXPECT_NE(FaultOf(text).find("too many"), std::string::npos);
  EXPECT_NE(FaultOf("jobs: {a: " + std::string(100, '[') + std::string(100, ']') + "}"), "");
  EXPECT_NE(FaultOf(""), "");
  EXPECT_NE(FaultOf("jobs: {a: {kind: convert, from: '${', to: hf}}"), "");
}

TEST(PipelineSpec, KeepsTheEnvironmentFromSpecsOfTheApi) {
  try {
    ParsePipelineSpec(R"({"jobs": {"a": {"kind": "convert", "from": "${HOME}", "to": "hf"}}})",
                      "spec", {}, {});
    FAIL() << "a variable was replaced";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("${HOME} is not expanded"), std::string::npos)
        << error.what();
  }
}

TEST(PipelineReferences, AreReplacedByWhatHasBeenMade) {
  const PipelineOutputs made = {{"a", {{"out", "/x"}}}};

  EXPECT_EQ(ReplaceReferences("in ${jobs.a.out}/y", made), "in /x/y");
  EXPECT_THROW(ReplaceReferences("${jobs.a.checkpoint}", made), Error);
  EXPECT_TRUE(IsReference("${jobs.a.out}"));
  EXPECT_FALSE(IsReference("${jobs.a.out}/y"));
}

}  // namespace
}  // namespace tandem::server
