// Certificates: how a conversion changes the model's output, and the limits for that change.

#include "convert/verify/certificate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "tests/convert/families.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using tests::Golden;

class CertificateTest : public testing::Test {
 protected:
  CertificateTest() : pool_(2), ops_(engine::Kernels(), pool_) {}

  ConvertSpec Spec(const std::string& golden, const std::string& dtype = "") const {
    ConvertSpec spec;
    spec.source = tests::LoadGolden(golden).dir;
    spec.dtype = dtype;
    spec.target = target_;
    return spec;
  }
  Json Run(const ConvertSpec& spec) {
    fs::remove_all(target_);
    const Json result = Json::parse(ConvertResultJson(Convert(spec, {}, ops_)));
    const Json record = Json::parse(engine::ReadWholeFile(target_ / "convert.json", 1 << 20));
    EXPECT_EQ(result["certificate"], record["certificate"]);
    return result["certificate"];
  }
  // Certifies target_.
  Certificate Of(const ConvertSpec& spec, int64_t memory_bytes = INT64_MAX) {
    return Certify(spec, target_,
                   {.work_dir = dir_.path(),
                    .cache_dir = {},
                    .progress = {},
                    .ops = ops_,
                    .memory_bytes = memory_bytes});
  }
  static std::pair<ErrorCode, std::string> Fault(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    ADD_FAILURE() << "was not refused";
    return {};
  }
  static void Rewrite(const fs::path& json_file, const std::function<void(Json&)>& change) {
    Json json = Json::parse(engine::ReadWholeFile(json_file, 1 << 20));
    change(json);
    engine::WriteFileAtomically(json_file, json.dump());
  }

  tests::TemporaryDir dir_;
  const fs::path target_ = dir_.path() / "out";
  ThreadPool pool_;
  engine::OpsContext ops_;
};

TEST_F(CertificateTest, ACopyOfEveryFamilySaysExactlyTheSame) {
  for (const std::string& name : ModelsOfEveryFamily()) {
    SCOPED_TRACE(name);

    const Json certificate = Run(Spec(name));

    EXPECT_EQ(certificate["state"], "measured") << certificate;
    EXPECT_EQ(certificate["equal_tensors"], true);
    EXPECT_GE(certificate["windows"], 2);
    EXPECT_GE(certificate["positions"], 64);
    EXPECT_EQ(certificate["max_abs_difference"], 0);
    EXPECT_EQ(certificate["mean_kl"], 0);
    EXPECT_EQ(certificate["max_kl"], 0);
    EXPECT_EQ(certificate["same_first_choice"], 1);
    EXPECT_FALSE(certificate.contains("perplexity")) << "the ids are no text";
    EXPECT_FALSE(certificate.contains("reference_perplexity"));
  }
}

TEST_F(CertificateTest, WhatRoundingChangesIsMeasuredAndHeldToMaxKl) {
  ConvertSpec spec = Spec("mistral-tiny", "bf16");  // stored as f32
  spec.max_kl = 0.01;
  const Json certificate = Run(spec);
  EXPECT_EQ(certificate["compute"], "f32");
  EXPECT_EQ(certificate["equal_tensors"], false);
  EXPECT_GT(certificate["max_abs_difference"], 0);
  EXPECT_GT(certificate["mean_kl"], 0);
  EXPECT_LT(certificate["max_kl"], 0.01);

  fs::remove_all(target_);
  spec.max_kl = certificate["max_kl"].get<double>() / 2;
  const auto [code, message] = Fault([&] { Convert(spec, {}, ops_); });

  EXPECT_EQ(code, ErrorCode::kDataLoss);
  char figure[32];
  std::snprintf(figure, sizeof figure, "%.3g", certificate["max_kl"].get<double>());
  EXPECT_NE(message.find(figure), std::string::npos) << message;
  EXPECT_TRUE(fs::is_empty(dir_.path()));
  // A copy without rounding passes any bar.
  ConvertSpec copy = Spec("mistral-tiny");
  copy.max_kl = 0;
  EXPECT_EQ(Run(copy)["max_kl"], 0);
}

TEST_F(CertificateTest, AnAdapterIsHeldToItsBaseWithTheAdapterBeside) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  ConvertSpec spec = Spec("gemma2-tiny");
  spec.base = spec.source;
  spec.source = golden.adapter_dir;
  spec.dtype = "f32";
  spec.max_kl = 1e-6;

  const Json certificate = Run(spec);

  EXPECT_EQ(certificate["state"], "measured") << certificate;
  EXPECT_EQ(certificate["compute"], "f32");
  EXPECT_EQ(certificate["equal_tensors"], false);
  EXPECT_EQ(certificate["same_first_choice"], 1);
  // Without the adapter it is another model.
  spec.source = spec.base;
  spec.base.clear();
  spec.max_kl.reset();
  EXPECT_GT(Of(spec).distance.max_kl, 1e-4);
}

TEST_F(CertificateTest, TurnedOffTheRecordSaysSo) {
  ConvertSpec spec = Spec("mistral-tiny");
  spec.certificate = false;
  EXPECT_EQ(Run(spec)["state"], "off");

  spec.max_kl = 1;
  fs::remove_all(target_);
  EXPECT_EQ(Fault([&] { Convert(spec, {}, ops_); }).first, ErrorCode::kInvalidArgument);
  spec.certificate = true;
  for (const double value : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    spec.max_kl = value;
    EXPECT_EQ(Fault([&] { Convert(spec, {}, ops_); }).first, ErrorCode::kInvalidArgument) << value;
  }
}

TEST_F(CertificateTest, WhyNothingWasMeasuredIsSaid) {
  ConvertSpec spec = Spec("mistral-tiny");
  Run(spec);
  const Certificate small = Of(spec, /*memory_bytes=*/1 << 20);
  EXPECT_EQ(small.state, Certificate::State::kNotMeasured);
  EXPECT_NE(small.reason.find("MiB are available"), std::string::npos) << small.reason;
  spec.max_kl = 1;
  const auto [code, message] = Fault([&] { Of(spec, 1 << 20); });
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_NE(message.find("MiB are available"), std::string::npos) << message;

  // A family that the engine cannot run is still copied.
  const fs::path other = dir_.path() / "other";
  fs::copy(spec.source, other, fs::copy_options::recursive);
  Rewrite(other / "config.json", [](Json& config) {
    config["model_type"] = "zebra";
    config["architectures"] = {"ZebraForCausalLM"};
  });
  spec.source = other;
  spec.max_kl.reset();
  const Json certificate = Run(spec);
  EXPECT_EQ(certificate["state"], "not_measured");
  EXPECT_NE(certificate.value("reason", "").find("Zebra"), std::string::npos) << certificate;
}

// The certificate compares whole models, not only the bytes of their tensors.
TEST_F(CertificateTest, EqualTensorsThatSayOtherThingsAreNoCopy) {
  const ConvertSpec spec = Spec("mistral-tiny");
  Run(spec);
  EXPECT_EQ(Of(spec).distance.max_abs_difference, 0);
  Rewrite(target_ / "config.json", [](Json& config) { config["rms_norm_eps"] = 0.5; });

  const auto [code, message] = Fault([&] { Of(spec); });

  EXPECT_EQ(code, ErrorCode::kDataLoss);
  EXPECT_NE(message.find("config.json"), std::string::npos) << message;
}

TEST_F(CertificateTest, AResultWithoutNumbersIsNotKept) {
  const ConvertSpec spec = Spec("mistral-tiny");
  Run(spec);
  const auto file = engine::SafetensorsFile::Open(target_ / "model.safetensors");
  std::vector<engine::NamedTensor> tensors;
  std::vector<float> spoiled;
  for (const std::string& name : file.names()) {
    tensors.push_back({name, *file.Find(name)});
    if (name != "model.norm.weight") continue;
    spoiled.assign(static_cast<size_t>(tensors.back().view.elements()),
                   std::numeric_limits<float>::quiet_NaN());
    tensors.back().view.data = reinterpret_cast<const std::byte*>(spoiled.data());
  }
  engine::WriteSafetensors(dir_.path() / "next", tensors, {});
  fs::rename(dir_.path() / "next", target_ / "model.safetensors");

  const auto [code, message] = Fault([&] { Of(spec); });

  EXPECT_EQ(code, ErrorCode::kDataLoss);
  EXPECT_NE(message.find("not finite"), std::string::npos) << message;
}

}  // namespace
}  // namespace tandem::convert
