#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/tensor_diff.h"
#include "convert/tensors/tensor_hash.h"
#include "convert/verify/verify_tensors.h"
#include "server/cli/checkpoint/checkpoint_verbs.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitDataFault = 65;  // EX_DATAERR
constexpr int kExitDifferent = 1;

void Print(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

struct VerifyFlags {
  std::string path;
  bool quick = false;
  bool json = false;
};

int Verify(const VerifyFlags& flags) {
  const convert::VerifyReport report =
      convert::VerifyTensors(flags.path, {.quick = flags.quick, .advance = {}});
  if (flags.json) {
    Print({{"format", report.format},
           {"path", report.path.string()},
           {"held_to", report.held_to},
           {"files", report.files},
           {"bytes", report.bytes},
           {"faults", report.faults}});
  } else {
    for (const std::string& fault : report.faults) std::printf("fault: %s\n", fault.c_str());
    std::printf("%s %s, %lld files or tensors, %.1f MiB, checked against: %s\n",
                report.path.c_str(), report.faults.empty() ? "is sound" : "is damaged",
                static_cast<long long>(report.files), static_cast<double>(report.bytes) / (1 << 20),
                report.held_to.c_str());
  }
  return report.faults.empty() ? 0 : kExitDataFault;
}

void AddVerify(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<VerifyFlags>();
  CLI::App* verify = command.add_subcommand(
      "verify", "check a checkpoint for damage; exit code 65 if it is damaged");
  verify
      ->add_option("path", flags->path,
                   "any path that ls accepts; for a directory of steps the newest step")
      ->required();
  verify->add_flag("--quick", flags->quick,
                   "check sizes and headers only; do not read the weights");
  verify->add_flag("--json", flags->json, "print JSON");
  verify->callback([flags, &exit_code] { exit_code = Verify(*flags); });
}

struct DiffFlags {
  std::string first, second, base;
  bool json = false;
};

// JSON has no NaN and no infinity: writes null.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

void PrintDifference(const convert::TensorDifference& each) {
  std::printf("%-18s %s", DifferenceName(each.kind), each.name.c_str());
  using Kind = convert::TensorDifference::Kind;
  if (each.kind == Kind::kValues || each.kind == Kind::kType) {
    if (each.kind == Kind::kType) std::printf(" %s, %s", each.first.c_str(), each.second.c_str());
    std::printf(" max abs %.3g, relative rms %.3g, %lld elements\n", each.max_abs,
                each.relative_rms, static_cast<long long>(each.elements));
    return;
  }
  std::printf(" %s%s%s\n", each.first.c_str(),
              each.first.empty() || each.second.empty() ? "" : ", ", each.second.c_str());
}

int Diff(const DiffFlags& flags) {
  const auto [first, second] = convert::OpenToCompare(flags.first, flags.second, flags.base);
  const convert::TensorDiff diff = convert::DiffTensors(*first.source, *second.source);
  if (flags.json) {
    Json out = {{"equal", diff.differences.empty()},
                {"compared", diff.compared},
                {"differences", Json::array()}};
    for (const convert::TensorDifference& each : diff.differences) {
      out["differences"].push_back({{"name", each.name},
                                    {"kind", DifferenceName(each.kind)},
                                    {"first", each.first},
                                    {"second", each.second},
                                    {"max_abs", Number(each.max_abs)},
                                    {"relative_rms", Number(each.relative_rms)},
                                    {"elements", each.elements}});
    }
    Print(out);
  } else {
    for (const convert::TensorDifference& each : diff.differences) PrintDifference(each);
    std::printf("%lld tensors in both, %zu differences\n", static_cast<long long>(diff.compared),
                diff.differences.size());
  }
  return diff.differences.empty() ? 0 : kExitDifferent;
}

void AddDiff(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<DiffFlags>();
  CLI::App* diff = command.add_subcommand(
      "diff", "list tensors that differ between two checkpoints; exit code 1 if any differ");
  diff->add_option("first", flags->first, "any path that ls accepts")->required();
  diff->add_option("second", flags->second,
                   "any path that ls accepts; its format, types and layout may differ")
      ->required();
  diff->add_option("--base", flags->base,
                   "directory with the config.json of a MaxText checkpoint's model; it maps the "
                   "tensor names (default: the checkpoint's own, else the other side's)");
  diff->add_flag("--json", flags->json, "print JSON");
  diff->callback([flags, &exit_code] { exit_code = Diff(*flags); });
}

void AddHash(CLI::App& command) {
  struct Flags {
    std::string path;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* hash = command.add_subcommand(
      "hash",
      "print one SHA-256 of all names, types, shapes and values, independent of the file format");
  hash->add_option("path", flags->path, "any path that ls accepts")->required();
  hash->add_flag("--json", flags->json, "print JSON, with the hash of every tensor");
  hash->callback([flags] {
    const convert::OpenedTensors opened = convert::OpenTensors(flags->path);
    const auto tensors = convert::HashTensors(*opened.source);
    if (!flags->json) {
      std::printf("%s  %s\n", convert::HashOf(tensors).c_str(), flags->path.c_str());
      return;
    }
    Json out = {{"tensors_sha256", convert::HashOf(tensors)}, {"tensors", Json::array()}};
    for (const convert::TensorHash& tensor : tensors) {
      out["tensors"].push_back({{"name", tensor.name},
                                {"dtype", tensor.dtype},
                                {"shape", tensor.shape},
                                {"sha256", tensor.sha256}});
    }
    Print(out);
  });
}

}  // namespace

void AddCheckpointChecking(CLI::App& command, int& exit_code) {
  AddVerify(command, exit_code);
  AddDiff(command, exit_code);
  AddHash(command);
}

}  // namespace tandem::server
