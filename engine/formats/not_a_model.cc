#include "engine/formats/not_a_model.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <vector>

#include "engine/base/quoted.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxListed = 4;  // names in a message
constexpr const char* kUnfinished = ".orbax-checkpoint-tmp";
constexpr const char* kAskForSafetensors =
    "save it again as safetensors, with save_pretrained(…, safe_serialization=True)";

bool Has(const fs::path& dir, const char* name) {
  std::error_code absent;
  return fs::exists(dir / name, absent);
}

bool EndsIn(const std::string& name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool IsPickle(const std::string& name) {
  return EndsIn(name, {".bin", ".pt", ".pth", ".ckpt", ".pkl"});
}

std::string Listed(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : ", ") + Quoted(names[i], 60);
  }
  if (names.size() > kMaxListed) text += ", …";
  return text;
}

bool IsOrbaxDir(const fs::path& dir) {
  return Has(dir, "_CHECKPOINT_METADATA") || Has(dir, "_METADATA") || Has(dir, "manifest.ocdbt");
}

// Entries of a directory, classified by name.
struct Entries {
  std::vector<std::string> models;    // folders with a config.json
  std::vector<std::string> adapters;  // folders with an adapter_config.json
  std::vector<std::string> gguf, safetensors, pickles, msgpack, keras;
  bool has_orbax_step = false;
  bool has_unfinished_step = false;
  bool is_empty = true;
};

void Sort(const fs::path& path, Entries* entries) {
  const std::string name = path.filename().string();
  std::error_code unknown;
  entries->is_empty = false;
  if (fs::is_directory(path, unknown)) {
    if (Has(path, "config.json")) entries->models.push_back(name);
    if (Has(path, "adapter_config.json")) entries->adapters.push_back(name);
    if (name.find(kUnfinished) != std::string::npos) {
      entries->has_unfinished_step = true;
    } else if (IsOrbaxDir(path)) {
      entries->has_orbax_step = true;
    }
    return;
  }
  if (name.ends_with(".gguf")) entries->gguf.push_back(name);
  if (name.ends_with(".safetensors")) entries->safetensors.push_back(name);
  if (name.ends_with(".msgpack")) entries->msgpack.push_back(name);
  if (name.ends_with(".h5")) entries->keras.push_back(name);
  if (IsPickle(name)) entries->pickles.push_back(name);
}

Entries LookInto(const fs::path& dir) {
  Entries entries;
  std::error_code unreadable;
  fs::directory_iterator entry(dir, unreadable);
  for (int n = 0; !unreadable && entry != fs::directory_iterator() && n < kMaxLookedAt; ++n) {
    Sort(entry->path(), &entries);
    entry.increment(unreadable);
  }
  return entries;
}

std::string AboutWeights(const Entries& entries) {
  if (!entries.gguf.empty()) {
    return "holds GGUF files (" + Listed(entries.gguf) + "); name one of them";
  }
  if (!entries.pickles.empty()) {
    return "holds pickled weights (" + Listed(entries.pickles) +
           "), which can run code when they are read; " + kAskForSafetensors;
  }
  if (!entries.msgpack.empty()) {
    return "holds Flax weights in msgpack (" + Listed(entries.msgpack) +
           "), which are not supported; load them with from_pretrained(…, from_flax=True) and save "
           "them as safetensors";
  }
  if (!entries.keras.empty()) {
    return "holds Keras weights (" + Listed(entries.keras) +
           "), which are not supported; load them with from_pretrained(…, from_tf=True) and save "
           "them "
           "as safetensors";
  }
  return "";
}

std::string AboutDirectory(const fs::path& dir) {
  const Entries entries = LookInto(dir);
  const bool has_config = Has(dir, "config.json");
  if (dir.filename().string().find(kUnfinished) != std::string::npos ||
      (entries.has_unfinished_step && !entries.has_orbax_step)) {
    return "an unfinished Orbax checkpoint (its writer stopped early); name a finished step, or "
           "save the step again";
  }
  if (!has_config && (IsOrbaxDir(dir) || entries.has_orbax_step)) {
    return "an Orbax checkpoint (MaxText, Tunix); convert it first: tandem convert DIR OUT --base "
           "MODEL";
  }
  if (!has_config && Has(dir, "adapter_config.json")) {
    return "an adapter (adapter_config.json); load its base model, and add --adapter NAME=DIR";
  }
  if (const std::string weights = AboutWeights(entries);
      !weights.empty() && entries.safetensors.empty()) {
    return weights;
  }
  if (has_config) {
    return "has a config.json, but neither model.safetensors nor model.safetensors.index.json; "
           "copy the weights into this directory";
  }
  if (!entries.safetensors.empty()) {
    return "holds " + Listed(entries.safetensors) +
           " without a config.json; copy the model's config.json and tokenizer files into this "
           "directory";
  }
  if (!entries.models.empty()) {
    return entries.models.size() == 1
               ? "holds a model in " + Listed(entries.models) + "; name that directory"
               : "holds several models (" + Listed(entries.models) + "); name one of them";
  }
  if (!entries.adapters.empty()) {
    return "holds adapters (" + Listed(entries.adapters) +
           "); load their base model, and add --adapter NAME=DIR for each";
  }
  return std::string(entries.is_empty ? "an empty directory" : "not a model directory") +
         "; a model is a Hugging Face directory (config.json and *.safetensors), a GGUF file or a "
         "llama2.c file";
}

std::string FirstBytes(const fs::path& file, size_t n) {
  std::string bytes(n, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(n));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  return bytes;
}

// Whether the bytes begin a msgpack map whose first key is a string: Flax writes its trees so.
bool LooksLikeMsgpack(const std::string& bytes) {
  const auto at = [&](size_t i) {
    return static_cast<unsigned char>(i < bytes.size() ? bytes[i] : 0);
  };
  const size_t head = (at(0) & 0xf0) == 0x80 ? 1 : at(0) == 0xde ? 3 : at(0) == 0xdf ? 5 : 0;
  const unsigned char key = at(head);
  return head > 0 && ((key & 0xe0) == 0xa0 || key == 0xd9 || key == 0xda);
}

std::string AboutFile(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string parent = file.has_parent_path() ? file.parent_path().string() : ".";
  if (EndsIn(name, {".safetensors", "config.json", ".index.json"})) {
    return "one file of a model; give the directory that contains it and config.json instead: " +
           parent;
  }
  const std::string bytes = FirstBytes(file, 8);
  if (IsPickle(name) || bytes.starts_with("\x80\x02") || bytes.starts_with("PK\x03\x04")) {
    return std::string("a pickle, which can run code when it is read; ") + kAskForSafetensors;
  }
  if (name.ends_with(".msgpack") || LooksLikeMsgpack(bytes)) {
    return "a Flax msgpack file, which is not supported; load it with Flax and save it with Orbax "
           "or as safetensors";
  }
  return "a file that is neither GGUF nor llama2.c; a model is one of these or a Hugging Face "
         "directory";
}

}  // namespace

std::string WhyNotAModel(const fs::path& path) {
  std::error_code absent;
  if (!fs::exists(path, absent)) return path.string() + ": no such model directory or file";
  const bool is_dir = fs::is_directory(path, absent);
  return path.string() + ": " + (is_dir ? AboutDirectory(path) : AboutFile(path));
}

}  // namespace tandem::engine
