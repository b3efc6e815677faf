#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "convert/orbax/orbax_checkpoint.h"
#include "convert/sources/checkpoint_summary.h"
#include "convert/sources/tensor_source_open.h"
#include "engine/formats/model_dir.h"
#include "engine/io/sha256.h"
#include "engine/tensor/dtype.h"
#include "server/cli/checkpoint/checkpoint_verbs.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Row {
  std::string name;
  std::string type;  // dtype; the kind of leaf if it is no array
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  std::string sha256;  // of the bytes; empty unless requested
};

struct Listing {
  std::string format;
  std::string path;  // the listed checkpoint: the newest step of a directory of steps
  std::vector<Row> rows;
};

std::string DigestOf(std::span<const std::byte> bytes) {
  return engine::ToHex(engine::Sha256Of(bytes));
}

Listing ListOrbax(const fs::path& path, bool has_digests) {
  const auto checkpoint = convert::OrbaxCheckpoint::Open(path);
  Listing listing{
      checkpoint.is_ocdbt() ? "orbax, ocdbt" : "orbax", checkpoint.item_dir().string(), {}};
  for (const auto& leaf : checkpoint.leaves()) {
    Row row{leaf.name(), leaf.value_type, {}, 0, ""};
    if (leaf.array) {
      row.type =
          leaf.array->dtype ? std::string(DTypeName(*leaf.array->dtype)) : leaf.array->type_name;
      row.shape = leaf.array->shape;
      row.bytes = leaf.array->bytes();
      if (has_digests && leaf.array->IsReadable()) {
        checkpoint.CheckStored(leaf);
        std::vector<std::byte> bytes(static_cast<size_t>(row.bytes));
        checkpoint.Read(leaf, bytes);
        row.sha256 = DigestOf(bytes);
      }
    }
    listing.rows.push_back(std::move(row));
  }
  return listing;
}

Listing ListModel(const fs::path& path, bool has_digests) {
  const auto model = engine::ModelDir::Open(path);
  Listing listing{model.format(), model.name(), {}};
  for (const std::string& name : model.tensor_names()) {
    const engine::StoredTensor& tensor = *model.FindStored(name);
    listing.rows.push_back({name, std::string(DTypeName(tensor.view.dtype)), tensor.view.shape,
                            static_cast<int64_t>(tensor.bytes().size()),
                            has_digests ? DigestOf(tensor.bytes()) : ""});
  }
  return listing;
}

void PrintJson(const Listing& listing) {
  Json out{{"format", listing.format}, {"path", listing.path}, {"leaves", Json::array()}};
  for (const Row& row : listing.rows) {
    Json leaf{{"name", row.name}, {"type", row.type}, {"shape", row.shape}, {"bytes", row.bytes}};
    if (!row.sha256.empty()) leaf["sha256"] = row.sha256;
    out["leaves"].push_back(std::move(leaf));
  }
  std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void PrintText(const Listing& listing) {
  int64_t bytes = 0;
  for (const Row& row : listing.rows) {
    std::printf("%-8s %-24s %s\n", row.type.c_str(), engine::ShapeText(row.shape).c_str(),
                row.name.c_str());
    bytes += row.bytes;
  }
  std::printf("%zu leaves, %.1f MiB, %s: %s\n", listing.rows.size(),
              static_cast<double>(bytes) / (1 << 20), listing.format.c_str(), listing.path.c_str());
}

void AddLs(CLI::App& command) {
  struct Flags {
    std::string path;
    bool json = false;
    bool has_digests = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* ls = command.add_subcommand("ls", "list the tensors of a checkpoint");
  ls->add_option("path", flags->path,
                 "Orbax checkpoint (of MaxText or Tunix: a directory of steps, a step or an item), "
                 "Hugging Face directory, checkpoint of a training run, or GGUF file")
      ->required();
  ls->add_flag("--json", flags->json, "print JSON");
  ls->add_flag("--sha256", flags->has_digests,
               "add the SHA-256 of every tensor's bytes; needs --json")
      ->needs("--json");
  ls->callback([flags] {
    const fs::path path(flags->path);
    const Listing listing = convert::OrbaxCheckpoint::Is(path)
                                ? ListOrbax(path, flags->has_digests)
                                : ListModel(path, flags->has_digests);
    flags->json ? PrintJson(listing) : PrintText(listing);
  });
}

// One line each, what is nested below, indented.
void PrintFields(const Json& object, int indent) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || (value.is_structured() && value.empty())) continue;
    std::printf("%*s%s:", indent, "", name.c_str());
    if (value.is_object()) {
      std::printf("\n");
      PrintFields(value, indent + 2);
    } else if (value.is_array()) {
      std::printf("\n");
      for (const Json& each : value) {
        std::printf("%*s-\n", indent + 2, "");
        PrintFields(each, indent + 4);
      }
    } else {
      std::printf(" %s\n",
                  value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
    }
  }
}

void AddShow(CLI::App& command) {
  struct Flags {
    std::string path;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* show = command.add_subcommand(
      "show", "show the kind and the origin of a checkpoint; does not read its weights");
  show->add_option("path", flags->path,
                   "model, adapter, checkpoint or directory of checkpoints, as for ls")
      ->required();
  show->add_flag("--json", flags->json, "print JSON");
  show->callback([flags] {
    const Json summary = Json::parse(convert::CheckpointSummary(flags->path));
    if (flags->json) {
      std::printf("%s\n", summary.dump(2).c_str());
    } else {
      PrintFields(summary, 0);
    }
  });
}

}  // namespace

void AddCheckpointShowing(CLI::App& command) {
  AddLs(command);
  AddShow(command);
}

}  // namespace tandem::server
