#include "convert/orbax/tree_metadata.h"

#include <utility>

#include "engine/base/quoted.h"
#include "engine/io/json_events.h"

namespace tandem::convert {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMostPathKeys = 64;  // of one path

// Follows {"tree_metadata": {NAME: {"key_metadata": [{"key": …}], "value_metadata":
// {"value_type": …}}}} and skips every other value, at any depth.
class TreeReader : public engine::JsonHandler {
 public:
  std::vector<TreeEntry> entries;

  void StartObject() override {
    if (skipped_ > 0 || !Enter(/*is_object=*/true)) ++skipped_;
  }
  void StartArray() override {
    if (skipped_ > 0 || !Enter(/*is_object=*/false)) ++skipped_;
  }
  void EndObject() override { Leave(); }
  void EndArray() override { Leave(); }
  void Key(std::string& name) override {
    if (skipped_ > 0) return;
    if (place_ == Place::kTree) name_ = name;
    field_ = std::move(name);
  }
  void String(std::string& value) override {
    if (skipped_ > 0) return;
    if (place_ == Place::kKey && field_ == "key") {
      if (has_key_) Fail(Quoted(name_) + " has an invalid key in key_metadata");
      entries.back().path.push_back(std::move(value));
      has_key_ = true;
    } else if (place_ == Place::kValue && field_ == "value_type") {
      entries.back().value_type = std::move(value);
    } else {
      Other();
    }
  }
  void Unsigned(uint64_t) override { Other(); }
  void Integer(int64_t) override { Other(); }
  void Float(double) override { Other(); }
  void Bool(bool) override { Other(); }
  void Null() override { Other(); }

  void Finish() {
    if (!has_tree_) Fail("tree_metadata is missing or is not an object");
  }

 private:
  enum class Place { kStart, kRoot, kTree, kEntry, kKeys, kKey, kValue };

  // Returns false for an unknown value, which is skipped.
  bool Enter(bool is_object) {
    switch (place_) {
      case Place::kStart:
        if (is_object) place_ = Place::kRoot;
        return is_object;
      case Place::kRoot:
        return field_ == "tree_metadata" && EnterTree(is_object);
      case Place::kTree:
        return EnterEntry(is_object);
      case Place::kEntry:
        if (field_ == "value_metadata" && is_object) place_ = Place::kValue;
        if (field_ == "key_metadata" && !is_object) EnterKeys();
        return place_ != Place::kEntry;
      case Place::kKeys:
        return EnterKey(is_object);
      case Place::kKey:
        if (field_ == "key") Fail(Quoted(name_) + " has an invalid key in key_metadata");
        return false;
      case Place::kValue:
        return false;
    }
    return false;
  }

  bool EnterTree(bool is_object) {
    if (!is_object) Fail("tree_metadata is missing or is not an object");
    if (has_tree_) Fail("tree_metadata occurs twice");
    has_tree_ = true;
    place_ = Place::kTree;
    return true;
  }

  bool EnterEntry(bool is_object) {
    if (!is_object) Fail(Quoted(name_) + " has no key_metadata");
    if (entries.size() == kMaxTreeEntries) {
      Fail("tree_metadata has more than " + std::to_string(kMaxTreeEntries) +
           " entries, which is the limit");
    }
    entries.emplace_back();
    has_keys_ = false;
    place_ = Place::kEntry;
    return true;
  }

  void EnterKeys() {
    if (has_keys_) Fail(Quoted(name_) + " has key_metadata twice");
    has_keys_ = true;
    place_ = Place::kKeys;
  }

  bool EnterKey(bool is_object) {
    if (!is_object) Fail(Quoted(name_) + " has an invalid key in key_metadata");
    if (entries.back().path.size() == kMostPathKeys) {
      Fail(Quoted(name_) + " has more than " + std::to_string(kMostPathKeys) + " keys");
    }
    has_key_ = false;
    place_ = Place::kKey;
    return true;
  }

  void Leave() {
    if (skipped_ > 0) {
      --skipped_;
      return;
    }
    switch (place_) {
      case Place::kStart:
      case Place::kRoot:
        place_ = Place::kStart;
        return;
      case Place::kTree:
        place_ = Place::kRoot;
        return;
      case Place::kEntry:
        if (!has_keys_) Fail(Quoted(name_) + " has no key_metadata");
        place_ = Place::kTree;
        return;
      case Place::kKey:
        if (!has_key_) Fail(Quoted(name_) + " has an invalid key in key_metadata");
        place_ = Place::kKeys;
        return;
      case Place::kKeys:
      case Place::kValue:
        place_ = Place::kEntry;
        return;
    }
  }

  // Handles scalars and texts that have no meaning here.
  void Other() {
    if (skipped_ > 0) return;
    if (place_ == Place::kTree) Fail(Quoted(name_) + " has no key_metadata");
    if (place_ == Place::kKeys || (place_ == Place::kKey && field_ == "key")) {
      Fail(Quoted(name_) + " has an invalid key in key_metadata");
    }
  }

  Place place_ = Place::kStart;
  int skipped_ = 0;  // nesting depth inside a skipped value
  bool has_tree_ = false;
  bool has_keys_ = false;  // of the last entry
  bool has_key_ = false;   // of its last key
  std::string name_;       // of the last entry
  std::string field_;      // of the open object
};

}  // namespace

std::vector<TreeEntry> ParseTreeMetadata(std::string_view json, const std::string& what) {
  TreeReader reader;
  engine::ParseJsonEvents(json, what, kMaxDepth, reader);
  reader.Finish();
  return std::move(reader.entries);
}

}  // namespace tandem::convert
