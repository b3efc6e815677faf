// Hostile adapters: each is refused with its fault, and other requests are unaffected.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using engine::DType;

constexpr const char* kModule = "model.layers.1.mlp.up_proj";

// An adapter in memory; tests change it and write it.
struct Parts {
  struct Tensor {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<float> values;  // f32; Write stores their bytes under any dtype
  };
  Json config;
  std::map<std::string, Tensor> tensors;

  static Parts Read(const fs::path& dir) {
    Parts parts;
    parts.config = Json::parse(engine::ReadWholeFile(dir / "adapter_config.json", 1 << 20));
    const auto file = engine::SafetensorsFile::Open(dir / "adapter_model.safetensors");
    for (const std::string& name : file.names()) {
      const engine::ConstTensorView view = *file.Find(name);
      Tensor& tensor = parts.tensors[name];
      tensor.shape.assign(view.shape.begin(), view.shape.end());
      tensor.values.resize(static_cast<size_t>(view.elements()));
      engine::ConvertToF32(view, tensor.values);
    }
    return parts;
  }
  void Write(const fs::path& dir) const {
    fs::remove_all(dir);
    fs::create_directories(dir);
    std::vector<engine::NamedTensor> named;
    for (const auto& [name, tensor] : tensors) {
      named.push_back(
          {name,
           {reinterpret_cast<const std::byte*>(tensor.values.data()), tensor.dtype, tensor.shape}});
    }
    engine::WriteSafetensors(dir / "adapter_model.safetensors", named, {});
    engine::WriteFileAtomically(dir / "adapter_config.json", config.dump());
  }
  Tensor& A() { return tensors.at(engine::LoraTensorNames(kModule).first); }
  Tensor& B() { return tensors.at(engine::LoraTensorNames(kModule).second); }
  static void Resize(Tensor& tensor, std::vector<int64_t> shape) {
    size_t n = 1;
    for (const int64_t length : shape) n *= static_cast<size_t>(length);
    tensor.shape = std::move(shape);
    tensor.values.assign(n, 0.01f);
  }
};

const std::string kA = engine::LoraTensorNames(kModule).first;
const std::string kB = engine::LoraTensorNames(kModule).second;

struct Hostile {
  const char* what;
  std::function<void(Parts&)> change;
  const char* code;
  std::vector<std::string> named;  // in the message
};

constexpr const char* kBad = "invalid_adapter";
constexpr const char* kForeign = "unsupported_adapter";

// The base is 32 wide; the adapter has rank 4.
std::vector<Hostile> HostileTensors() {
  return {
      {"A too narrow",
       [](Parts& p) {
         Parts::Resize(p.A(), {4, 31});
       },
       kBad,
       {kA, "[4, 31]"}},
      {"A too wide",
       [](Parts& p) {
         Parts::Resize(p.A(), {4, 64});
       },
       kBad,
       {kA, "[4, 64]"}},
      {"B too short",
       [](Parts& p) {
         Parts::Resize(p.B(), {1, 4});
       },
       kBad,
       {kB, "[1, 4]"}},
      {"A turned round",
       [](Parts& p) {
         Parts::Resize(p.A(), {32, 4});
       },
       kBad,
       {kA, "32"}},
      {"A of one axis", [](Parts& p) { Parts::Resize(p.A(), {128}); }, kBad, {kA, "1 axes"}},
      {"A of three axes",
       [](Parts& p) {
         Parts::Resize(p.A(), {4, 32, 1});
       },
       kBad,
       {kA, "3 axes"}},
      {"A empty",
       [](Parts& p) {
         Parts::Resize(p.A(), {0, 32});
       },
       kBad,
       {kA}},
      {"A of no width",
       [](Parts& p) {
         Parts::Resize(p.A(), {4, 0});
       },
       kBad,
       {kA}},
      {"another rank in one layer",
       [](Parts& p) {
         Parts::Resize(p.A(), {5, 32});
         Parts::Resize(p.B(), {p.B().shape[0], 5});
       },
       kBad,
       {kA, "5", "4"}},
      {"A and B of two ranks",
       [](Parts& p) {
         Parts::Resize(p.B(), {p.B().shape[0], 8});
       },
       kBad,
       {kB, "8"}},
      {"A without B", [](Parts& p) { p.tensors.erase(kB); }, kBad, {kB, "missing"}},
      {"B without A", [](Parts& p) { p.tensors.erase(kA); }, kBad, {kA, "missing"}},
      {"no tensors", [](Parts& p) { p.tensors.clear(); }, kBad, {"no tensors"}},
      {"integers", [](Parts& p) { p.A().dtype = DType::kI32; }, kForeign, {kA, "i32"}},
      {"not a number",
       [](Parts& p) { p.A().values[5] = std::numeric_limits<float>::quiet_NaN(); },
       kBad,
       {kA, "not finite"}},
      {"infinite",
       [](Parts& p) { p.B().values[0] = -std::numeric_limits<float>::infinity(); },
       kBad,
       {kB, "not finite"}},
      {"a name of another kind",
       [](Parts& p) { p.tensors["classifier.weight"] = p.A(); },
       kForeign,
       {"classifier.weight"}},
      {"a layer that the base does not have",
       [](Parts& p) {
         const auto [a, b] = engine::LoraTensorNames("model.layers.9.mlp.up_proj");
         p.tensors[a] = p.A();
         p.tensors[b] = p.B();
         p.config["target_modules"].push_back("model.layers.9.mlp.up_proj");
       },
       kBad,
       {"layers.9", "no linear layer"}},
      {"the head",
       [](Parts& p) {
         const auto [a, b] = engine::LoraTensorNames("model.embed_tokens");
         p.tensors[a] = p.A();
         p.tensors[b] = p.B();
         p.config["target_modules"].push_back("embed_tokens");
       },
       kBad,
       {"embed_tokens"}},
  };
}

Hostile Config(const char* what, const char* field, Json value, const char* code) {
  return {what, [=](Parts& p) { p.config[field] = value; }, code, {field}};
}

std::vector<Hostile> HostileConfigs() {
  std::vector<Hostile> all = {
      Config("rank 0", "r", 0, kBad),
      Config("a negative rank", "r", -4, kBad),
      Config("a rank beyond all bounds", "r", 1'000'000'000, kBad),
      Config("half a rank", "r", 4.5, kBad),
      Config("a rank in words", "r", "four", kBad),
      Config("a list of ranks", "r", Json::array({4}), kBad),
      Config("alpha in words", "lora_alpha", "eight", kBad),
      Config("alpha beyond all bounds", "lora_alpha", 1e300, kBad),
      Config("a negative alpha", "lora_alpha", -1, kBad),
      Config("targets of numbers", "target_modules", Json::array({1, 2}), kBad),
      Config("targets as an object", "target_modules", Json::object({{"a", 1}}), kBad),
      Config("targets that leave layers out", "target_modules", Json::array({"q_proj"}), kBad),
      Config("a pattern of expressions", "rank_pattern", Json::object({{".*up", 8}}), kForeign),
      Config("a pattern of nothing", "rank_pattern", Json::object({{"up_proj", 0}}), kBad),
      Config("a pattern as a list", "alpha_pattern", Json::array({1}), kBad),
      Config("another kind", "peft_type", "IA3", kForeign),
      Config("a kind in numbers", "peft_type", 7, kBad),
      Config("trained biases", "bias", "all", kForeign),
      Config("DoRA without magnitudes", "use_dora", true, kBad),
      Config("DoRA in words", "use_dora", "yes", kBad),
      Config("saved modules without tensors", "modules_to_save", Json::array({"lm_head"}), kBad),
      Config("saved modules as numbers", "modules_to_save", Json::array({1}), kBad),
      Config("a base that was changed", "init_lora_weights", "pissa", kForeign),
      Config("a field of the future", "quantum_rank", 3, kForeign),
  };
  all.push_back({"a rank that the tensors do not have",
                 [](Parts& p) { p.config["r"] = 257; },
                 kBad,
                 {"rank", "257"}});
  all.push_back({"a list for a config",
                 [](Parts& p) { p.config = Json::array(); },
                 kBad,
                 {"adapter_config.json"}});
  return all;
}

class AppAdaptersHostile : public AppAdaptersTest {
 protected:
  AppAdaptersHostile() {
    StartApp(WithAdmin());
    Load("good", "one");
    good_ = Says("good");
    plain_ = Says("tiny");
    used_ = Used();
  }
  fs::path Dir() const { return directory_->path() / "hostile"; }
  Parts Good() const { return Parts::Read(directory_->path() / "one"); }
  Json Used() {
    return Json::parse(AdminWithout("GET", "/admin/models").body)["memory"]["used_bytes"];
  }
  // Through our route and vLLM's, with a taken name and with a free one.
  void ExpectRefused(const std::string& what, const Faulty& fault,
                     const std::vector<std::string>& named) {
    SCOPED_TRACE(what);
    const std::vector<RawClient::Reply> replies = {
        Admin("/admin/adapters/load", {{"name", "x"}, {"path", "hostile"}}),
        Admin("/admin/adapters/load", {{"name", "good"}, {"path", "hostile"}, {"replace", true}}),
        Admin("/v1/load_lora_adapter", {{"lora_name", "x"}, {"lora_path", "hostile"}}),
        Admin("/v1/load_lora_adapter",
              {{"lora_name", "good"}, {"lora_path", "hostile"}, {"load_inplace", true}})};
    for (const RawClient::Reply& reply : replies) {
      EXPECT_EQ(Fault(reply), fault) << reply.body;
      const Json body = Json::parse(reply.body, nullptr, false);
      if (!body.is_object() || !body.contains("error")) continue;
      const auto message = body["error"]["message"].get<std::string>();
      EXPECT_LT(message.size(), 1000U);
      for (const std::string& part : named) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
      }
    }
  }
  void ExpectNothingChanged() {
    EXPECT_EQ(Get("/v1/models/x").status, 404);
    EXPECT_EQ(Says("good"), good_);
    EXPECT_EQ(Says("tiny"), plain_);
    EXPECT_EQ(Used(), used_);
  }

  std::string good_, plain_;
  Json used_;
};

TEST_F(AppAdaptersHostile, TensorsThatDoNotFitAreNamed) {
  for (const Hostile& hostile : HostileTensors()) {
    Parts parts = Good();
    hostile.change(parts);
    parts.Write(Dir());
    ExpectRefused(hostile.what, {400, hostile.code}, hostile.named);
  }
  ExpectNothingChanged();
}

TEST_F(AppAdaptersHostile, FieldsThatDoNotFitAreNamed) {
  for (const Hostile& hostile : HostileConfigs()) {
    Parts parts = Good();
    hostile.change(parts);
    parts.Write(Dir());
    ExpectRefused(hostile.what, {400, hostile.code}, hostile.named);
  }
  ExpectNothingChanged();
}

TEST_F(AppAdaptersHostile, FilesThatAreBrokenAreNamed) {
  const auto config = Dir() / "adapter_config.json";
  const auto weights = Dir() / "adapter_model.safetensors";
  const auto write = [](const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  };
  const auto expect = [&](const char* what, const std::function<void()>& damage, int status,
                          const char* code, const fs::path& file) {
    Good().Write(Dir());
    damage();
    ExpectRefused(what, {status, code}, {file.filename().string()});
  };
  const uintmax_t whole = fs::file_size(directory_->path() / "one" / "adapter_model.safetensors");

  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{7}, uintmax_t{100}, whole / 2, whole - 1}) {
    const std::string what = "cut to " + std::to_string(size);
    expect(
        what.c_str(), [&] { fs::resize_file(weights, size); }, 400, kBad, weights);
  }
  expect(
      "a header of 2^63 bytes", [&] { write(weights, "\xff\xff\xff\xff\xff\xff\xff\x7f{}"); }, 400,
      kBad, weights);
  expect(
      "no JSON", [&] { write(config, "r: 4"); }, 400, kBad, config);
  expect(
      "half a config", [&] { fs::resize_file(config, fs::file_size(config) / 2); }, 400, kBad,
      config);
  expect(
      "brackets without end", [&] { write(config, std::string(100'000, '[')); }, 400, kBad, config);
  expect(
      "an empty config", [&] { write(config, ""); }, 400, kBad, config);
  expect(
      "a config of 8 MiB", [&] { write(config, "{\"r\": 4" + std::string(8 << 20, ' ') + "}"); },
      400, kBad, config);
  expect(
      "no config", [&] { fs::remove(config); }, 404, "path_not_found", config);
  expect(
      "no tensors' file", [&] { fs::remove(weights); }, 404, "path_not_found", weights);
  expect(
      "a directory for a config",
      [&] {
        fs::remove(config);
        fs::create_directory(config);
      },
      400, kBad, config);
  expect(
      "a pickle", [&] { fs::rename(weights, Dir() / "adapter_model.bin"); }, 400, kForeign,
      "adapter_model.bin");
  ExpectNothingChanged();
}

// Large but valid: a rank above the width of the adapted layer.
TEST_F(AppAdaptersHostile, AHighRankThatFitsIsServed) {
  tests::WriteRandomAdapter(directory_->path() / "tiny", 257, 5, directory_->path() / "high");

  EXPECT_EQ(Load("high", "high")["rank"], 257);
  EXPECT_NE(Says("high"), plain_);
  EXPECT_EQ(Admin("/admin/adapters/unload", {{"name", "high"}}).status, 200);

  ExpectNothingChanged();
}

}  // namespace
}  // namespace tandem::server
