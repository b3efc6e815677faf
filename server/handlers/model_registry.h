#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/control_tokens.h"

namespace tandem::server {

// A model that answers requests. Immutable once published; whoever holds the pointer may use the
// engine, whatever happens to the registry meanwhile.
struct ServedModel {
  std::string id;       // canonical: what answers carry
  int64_t created = 0;  // Unix seconds
  std::string owned_by = "local";
  std::string root;                   // base id, free of paths
  std::optional<std::string> parent;  // base id of a tuned model
  std::shared_ptr<engine::Engine> engine;
  ControlTokens control_tokens;

  const engine::LoadedModel& loaded() const { return engine->loaded(); }
};

// Which model a name means. Thread-safe; models are handed out as shared pointers, so a look-up
// never waits for a load and a removed model ends with its last request.
class ModelRegistry {
 public:
  // With `any_model_name`, unknown names mean the first model.
  explicit ModelRegistry(bool any_model_name) : any_model_name_(any_model_name) {}

  // The model answers to its id and to every alias. Throws kAlreadyExists naming a taken name.
  void Add(std::shared_ptr<const ServedModel> model, const std::vector<std::string>& aliases = {});

  // The same, but takes the place of a model of the same id (a job's model published again), and
  // leaves out aliases that are taken.
  void Publish(std::shared_ptr<const ServedModel> model, const std::vector<std::string>& aliases);
  bool Contains(const std::string& name) const;

  // Throws kNotFound (model_not_found) listing up to eight names. With `name` unset: the only
  // model, or kInvalidArgument when there are several.
  std::shared_ptr<const ServedModel> Find(const std::optional<std::string>& name) const;

  struct Entry {
    std::string name;
    std::shared_ptr<const ServedModel> model;
  };
  std::vector<Entry> List() const;  // in the order of loading, aliases included
  bool empty() const;
  // Lets go of every model (shutdown).
  void Clear();

 private:
  const bool any_model_name_;
  mutable std::mutex mutex_;  // guards entries_
  std::vector<Entry> entries_;
};

}  // namespace tandem::server
