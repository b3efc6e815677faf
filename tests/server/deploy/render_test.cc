#include "server/deploy/render.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "server/deploy/templates.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

constexpr const char* kSmallest = "PROJECT_ID=my-project\nREGION=us-east5\nREPO_NAME=demo\n";

ResolvedDeploy Resolve(const std::string& env) {
  return ResolveDeploy(ParseEnvFile(env, "config.env"), "config.env");
}

std::string FaultOfEnv(const std::string& env) {
  try {
    Resolve(env);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string FaultOfTemplate(const char* file, const char* text, const DeployValues& values) {
  try {
    RenderTemplate(file, text, values);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Variables, DerivedValuesFollowTheGivenOnes) {
  const ResolvedDeploy deploy = Resolve(kSmallest);

  EXPECT_EQ(deploy.values.at("TRAINER_IMAGE"),
            "us-east5-docker.pkg.dev/my-project/demo/tandem-trainer:latest");
  EXPECT_EQ(deploy.values.at("ARTIFACTS_BUCKET"), "my-project-tandem-artifacts");
  EXPECT_EQ(deploy.values.at("OUTPUT_DIR"), "/gcs/artifacts/output/finetuned");
  EXPECT_NE(std::find(deploy.derived.begin(), deploy.derived.end(), "TRAINER_IMAGE"),
            deploy.derived.end());
}

TEST(Variables, TheSecondSeedsNamesWorkToo) {
  const ResolvedDeploy deploy = Resolve(
      "PROJECT=my-project\nREGION=r1\nREPO_NAME=demo\nDOCKER_IMAGE=gcr.io/p/"
      "image\nTPU_TYPE=v6e-256\n"
      "DATASET_NAME=HuggingFaceH4/ultrachat_200k\nHF_TOKEN=" +
      std::string("hf_") + "secretsecretsecretsecret\n");

  EXPECT_EQ(deploy.values.at("TRAINER_IMAGE"), "gcr.io/p/image");
  EXPECT_EQ(deploy.values.at("DATASET_PATH"), "HuggingFaceH4/ultrachat_200k");
  EXPECT_EQ(deploy.unused, std::vector<std::string>{"TPU_TYPE"});
  for (const auto& [name, value] : deploy.values)
    EXPECT_FALSE(Contains(value, "hf_secret")) << name;
}

TEST(Variables, AllFaultsAreReportedAtOnceWithTheirLines) {
  const std::string fault = FaultOfEnv(
      "PROJECT_ID=YOUR_PROJECT_ID\nREGION=<Region>\nMODLE_NAME=x\nSTEPS=-4\nHF_TOKEN=hf_your_"
      "actual_token\n"
      "OUTPUT_DIR=/a/../etc\nNAMESPACE=\"x\\\" y\"\n");

  EXPECT_TRUE(Contains(fault, "config.env:1: PROJECT_ID (or PROJECT) still has its placeholder"))
      << fault;
  EXPECT_TRUE(Contains(fault, "config.env:2: REGION still has its placeholder")) << fault;
  EXPECT_TRUE(Contains(fault, "config.env: REPO_NAME has no value")) << fault;
  EXPECT_TRUE(
      Contains(fault, "config.env:3: unknown variable MODLE_NAME; did you mean MODEL_NAME?"))
      << fault;
  EXPECT_TRUE(Contains(fault, "config.env:4: STEPS must be a positive number")) << fault;
  EXPECT_TRUE(Contains(fault, "config.env:5: HUGGINGFACE_TOKEN (or HF_TOKEN) still has")) << fault;
  EXPECT_TRUE(Contains(fault, "config.env:6: OUTPUT_DIR must be an absolute path")) << fault;
  EXPECT_TRUE(Contains(fault, "config.env:7: NAMESPACE must be")) << fault;
}

TEST(Variables, ASecretComesFromItsLineOrItsFile) {
  const tests::TemporaryDir dir;
  std::ofstream(dir.path() / "token") << "from-a-file\n";
  const std::string env = kSmallest;
  const EnvValues line = ParseEnvFile(env + "HF_TOKEN=from-a-line\n", "f");
  const EnvValues file =
      ParseEnvFile(env + "HF_TOKEN_PATH=" + (dir.path() / "token").string() + "\n", "f");

  EXPECT_EQ(SecretOf(line, "f", "HUGGINGFACE_TOKEN"), "from-a-line");
  EXPECT_EQ(SecretOf(file, "f", "HF_TOKEN"), "from-a-file");
  EXPECT_THROW(SecretOf(line, "f", "PROJECT_ID"), Error);
}

TEST(RenderTemplate, ValuesAreEscapedForTheFormatOfTheFile) {
  const DeployValues values = {{"V", R"(a "b" 'c' \d %{e} {{F}})"}};

  EXPECT_EQ(RenderTemplate("x.yaml", "k: \"{{V}}\"\n", values),
            "k: \"a \\\"b\\\" 'c' \\\\d %{e} {{F}}\"\n");
  EXPECT_EQ(RenderTemplate("x.tf", "k = \"{{V}}\"", values),
            "k = \"a \\\"b\\\" 'c' \\\\d %%{e} {{F}}\"");
  EXPECT_EQ(RenderTemplate("x.sh", "k='{{V}}'\n", values),
            "k='a \"b\" '\\''c'\\'' \\d %{e} {{F}}'\n");
}

TEST(RenderTemplate, HostileValuesAreRefusedWithFileAndLine) {
  for (const char* hostile :
       {"$(TOKEN)", "${HOME}", "a\nb: c", "a\x01", "\xC2\x85", "\xE2\x80\xA8"}) {
    EXPECT_TRUE(Contains(FaultOfTemplate("x.yaml", "a: 1\nk: \"{{V}}\"\n", {{"V", hostile}}),
                         "x.yaml:2: the value of V contains"))
        << hostile;
  }
}

TEST(RenderTemplate, APlaceholderOutsideAStringTakesOnlyPlainValues) {
  EXPECT_EQ(RenderTemplate("x.yaml", "replicas: {{N}}\n", {{"N", "12"}}), "replicas: 12\n");
  EXPECT_TRUE(Contains(FaultOfTemplate("x.yaml", "replicas: {{N}}\n", {{"N", "yes"}}),
                       "x.yaml:1: the value of N must be a number here"));
  EXPECT_EQ(RenderTemplate("x.cfg", "server {{N}}\n", {{"N", "a-1"}}), "server a-1\n");
  EXPECT_TRUE(
      Contains(FaultOfTemplate("x.cfg", "server {{N}}\n", {{"N", "a b"}}), "one plain word"));
  EXPECT_TRUE(Contains(FaultOfTemplate("x.sh", "cd {{N}}\n", {{"N", "a"}}), "single quotes"));
}

TEST(RenderTemplate, UnresolvedPlaceholdersAreErrors) {
  EXPECT_TRUE(Contains(FaultOfTemplate("x.yaml", "a: 1\nb: \"{{GONE}}\"\n", {}),
                       "x.yaml:2: no value for GONE"));
  EXPECT_TRUE(Contains(FaultOfTemplate("x.yaml", "b: YOUR_PROJECT_ID\n", {}),
                       "x.yaml:1: unresolved placeholder YOUR_PROJECT_ID"));
  EXPECT_TRUE(Contains(FaultOfTemplate("x.yaml", "b: \"{{GONE\"\n", {}), "not closed"));
}

TEST(RenderDeploy, WritesEveryTemplateAndReplacesOnlyItsOwnOutput) {
  const tests::TemporaryDir dir;
  const DeployValues values = Resolve(kSmallest).values;
  const std::filesystem::path out = dir.path() / "deploy";

  const std::vector<std::string> paths = RenderDeploy(values, out);
  RenderDeploy(values, out);

  EXPECT_EQ(paths.size(), DeployTemplates().size());
  for (const std::string& path : paths) {
    EXPECT_FALSE(engine::ReadWholeFile(out / path, 1 << 20).empty()) << path;
  }
  std::filesystem::create_directory(dir.path() / "mine");
  std::ofstream(dir.path() / "mine" / "file") << "text";
  EXPECT_THROW(RenderDeploy(values, dir.path() / "mine"), Error);
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "mine" / "file"));
}

// Every template is in the program, and every variable has a use.
TEST(RenderDeploy, TemplatesAndVariablesAgree) {
  std::string all;
  for (const DeployTemplate& source : DeployTemplates()) all += source.text;

  for (const DeployVariable& variable : DeployVariables()) {
    const std::string name(variable.name);
    bool is_used = Contains(all, "{{" + name + "}}") || variable.rule == DeployRule::kSecret;
    for (const DeployVariable& other : DeployVariables()) {
      is_used = is_used || Contains(std::string(other.fallback), "${" + name + "}");
    }
    EXPECT_TRUE(is_used || name == "HUGGINGFACE_TOKEN_FILE") << name;
  }
}

}  // namespace
}  // namespace tandem::server
