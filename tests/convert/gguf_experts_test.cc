// Models with experts as GGUF files and back, for every family whose experts GGUF can hold.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/models/random_model.h"
#include "convert/tensors/model_source.h"
#include "engine/formats/gguf/gguf.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/tensor/tensor.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/gguf_models.h"
#include "tests/support/gguf_writer.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::FamilySpec;
using engine::ModelConfig;

using TensorBytes =
    std::map<std::string, std::pair<engine::ConstTensorView, std::vector<std::byte>>>;

// One tensor per expert, whatever the files have.
TensorBytes BytesOfTensors(const fs::path& model) {
  TensorBytes tensors;
  const auto source = OpenModelFiles(model, std::nullopt);
  for (int64_t part = 0; part < source->parts(); ++part) {
    source->ReadPart(part, [&](const auto& tensor, const auto& bytes) {
      tensors[tensor.name] = {tensor.view, {bytes.begin(), bytes.end()}};
    });
  }
  return tensors;
}

class GgufExpertsTest : public ConversionTest {
 protected:
  fs::path Written(const fs::path& from, const std::string& format, const std::string& name,
                   const std::string& dtype) {
    ConvertSpec spec = Spec(from, format, name);
    spec.dtype = dtype;
    Run(spec);
    return spec.target;
  }
};

// Older files have one tensor per expert; newer ones join gates and ups.
enum class ExpertForm { kSplit, kJoined };

std::string BytesOf(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Writes the f32 file with its experts in another form.
void RewriteExperts(const fs::path& from, const fs::path& to, ExpertForm form,
                    const FamilySpec& family, const ModelConfig& config) {
  const std::string bytes = engine::ReadWholeFile(from, size_t{1} << 30);
  const auto file = engine::GgufFile::FromBytes(std::as_bytes(std::span(bytes)), from.string());
  tests::GgufWriter writer;
  const engine::GgufArchitecture& architecture = engine::GgufArchitectureOf(family, config);
  const std::string name(architecture.name);
  writer.Add("general.architecture", name);
  for (const engine::GgufSetting& setting : architecture.write_config(config)) {
    const std::string key = name + "." + std::string(setting.key);
    if (const auto* count = std::get_if<uint32_t>(&setting.value)) writer.Add(key, *count);
    if (const auto* number = std::get_if<float>(&setting.value)) writer.Add(key, *number);
    if (const auto* is = std::get_if<bool>(&setting.value)) writer.Add(key, *is);
  }
  for (const engine::GgufFile::Tensor& tensor : file.tensors()) {
    const std::string tensor_name(tensor.name);
    const size_t stacked = tensor_name.find("_exps.weight");
    const std::string layer = tensor_name.substr(0, tensor_name.find("ffn_"));
    if (stacked == std::string::npos ||
        (form == ExpertForm::kJoined && tensor_name.find("ffn_down") != std::string::npos)) {
      writer.AddTensor(tensor_name, tests::kGgufF32, tensor.shape, BytesOf(tensor.data));
      continue;
    }
    const auto n_experts = static_cast<size_t>(tensor.shape.front());
    const size_t expert_bytes = tensor.data.size() / n_experts;
    std::vector<int64_t> shape = tensor.shape;
    if (form == ExpertForm::kSplit) {
      shape.erase(shape.begin());
      for (size_t e = 0; e < n_experts; ++e) {
        writer.AddTensor(tensor_name.substr(0, stacked) + "." + std::to_string(e) + ".weight",
                         tests::kGgufF32, shape,
                         BytesOf(tensor.data.subspan(e * expert_bytes, expert_bytes)));
      }
      continue;
    }
    if (tensor_name.find("ffn_up") != std::string::npos) continue;  // written with the gates
    const engine::GgufFile::Tensor& ups = *file.Find(layer + "ffn_up_exps.weight");
    std::string joined;
    for (size_t e = 0; e < n_experts; ++e) {
      joined += BytesOf(tensor.data.subspan(e * expert_bytes, expert_bytes));
      joined += BytesOf(ups.data.subspan(e * expert_bytes, expert_bytes));
    }
    shape[1] *= 2;
    writer.AddTensor(layer + "ffn_gate_up_exps.weight", tests::kGgufF32, shape, joined);
  }
  writer.Write(to);
}

TEST_F(GgufExpertsTest, OneTensorPerExpertAndJoinedGatesAreReadAsTheStackedOnes) {
  struct Form {
    const char* family;
    ExpertForm form;
  };
  for (const Form& form :
       {Form{"mixtral", ExpertForm::kSplit}, Form{"qwen3_moe", ExpertForm::kJoined},
        Form{"gpt_oss", ExpertForm::kJoined}}) {
    SCOPED_TRACE(form.family);
    const FamilySpec& family = engine::FindFamilyByName(form.family);
    const ModelConfig config = GgufModelOf(family);
    const fs::path model = dir_.path() / "model", other = dir_.path() / "other.gguf";
    bench::WriteRandomModel({.config = config, .stored = engine::DType::kF32}, model);
    const fs::path file = Written(model, "gguf", "model.gguf", "f32");

    RewriteExperts(file, other, form.form, family, config);
    const TensorBytes wanted = BytesOfTensors(file), read = BytesOfTensors(other);

    ASSERT_EQ(read.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      ASSERT_TRUE(read.contains(name)) << name;
      EXPECT_EQ(read.at(name).first.shape, tensor.first.shape) << name;
      EXPECT_TRUE(read.at(name).second == tensor.second) << name << " has other numbers";
    }
    fs::remove_all(model);
    for (const char* name : {"model.gguf", "model.gguf.convert.json", "other.gguf"}) {
      fs::remove(dir_.path() / name);
    }
  }
}

TEST_F(GgufExpertsTest, ComeBackByteForByteInEveryFamily) {
  int64_t n_families = 0;
  for (const FamilySpec* family : engine::Families()) {
    if (family->gguf == nullptr) continue;
    if (!engine::GgufArchitectureOf(*family, /*has_experts=*/true).has_experts) continue;
    SCOPED_TRACE(family->name);
    ++n_families;
    const fs::path model = dir_.path() / "model";
    bench::WriteRandomModel({.config = GgufModelOf(*family), .with_tokenizer = true}, model);
    const TensorBytes original = BytesOfTensors(model);
    for (const char* dtype : {"bf16", "f32", ""}) {
      SCOPED_TRACE(dtype);
      const fs::path file = Written(model, "gguf", "model.gguf", dtype);
      const fs::path back = Written(file, "hf", "back", "bf16");

      const TensorBytes read = BytesOfTensors(back);
      EXPECT_EQ(read.size(), original.size());
      for (const auto& [name, tensor] : original) {
        const auto found = read.find(name);
        ASSERT_NE(found, read.end()) << name;
        EXPECT_EQ(found->second.first.shape, tensor.first.shape) << name;
        EXPECT_EQ(found->second.first.dtype, tensor.first.dtype) << name;
        EXPECT_TRUE(found->second.second == tensor.second) << name << " has other numbers";
      }
      fs::remove_all(back);
      for (const char* name : {"model.gguf", "model.gguf.convert.json"}) {
        fs::remove(dir_.path() / name);
      }
    }
    fs::remove_all(model);
  }
  EXPECT_GE(n_families, 17);
}

}  // namespace
}  // namespace tandem::convert
