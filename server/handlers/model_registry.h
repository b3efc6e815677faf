#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/control_tokens.h"

namespace tandem::server {

// A model that answers requests. Immutable once published; who has found one may use its engine for
// as long as the pointer is held, whatever happens to the registry meanwhile.
struct ServedModel {
  std::string id;       // canonical: what answers carry
  int64_t created = 0;  // Unix seconds
  std::string owned_by = "local";
  std::string root;                   // base id, free of paths
  std::optional<std::string> parent;  // base id of a tuned model
  std::shared_ptr<engine::Engine> engine;
  // What the engine's model is adapted with here; null: nothing. With an adapter the engine is the
  // base's, who counts and reports what it does.
  std::shared_ptr<const engine::Adapter> adapter;
  std::string fingerprint;  // of its answers, where an adapter makes it another than the engine's
  ControlTokens control_tokens;

  const engine::LoadedModel& loaded() const { return engine->loaded(); }
  // Made here by a job, and may be deleted. Everything else belongs to whoever started the server.
  bool is_tuned() const { return owned_by == "user"; }
};

// Which model a name means. Thread-safe.
//
// The registry owns the models. What it hands out are leases: they keep a model from ending, and
// when a model has left the registry and its last lease is gone, a thread of the registry's ends
// it. So whoever lets go last, be it the model's own engine thread, never has to wait for it.
class ModelRegistry {
 public:
  // With `any_model_name`, unknown names mean the first model.
  explicit ModelRegistry(bool any_model_name);
  ~ModelRegistry();  // Clear()
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  // The model answers to its id and to every alias. Throws kAlreadyExists naming a taken name.
  void Add(std::shared_ptr<const ServedModel> model, const std::vector<std::string>& aliases = {});

  // The same, but takes the place of a model of the same id (a job's model published again), and
  // leaves out aliases that are taken. Requests running on the old one end on it.
  void Publish(const std::shared_ptr<const ServedModel>& model,
               const std::vector<std::string>& aliases);
  bool Contains(const std::string& name) const;

  // No name means the model any more; requests running on it end first. `on_gone` is called, on a
  // thread that may block, when the last has ended and the model's memory is free; at shutdown it
  // is dropped. False when nothing has that name.
  bool Remove(const std::string& name, std::function<void()> on_gone);

  // Throws kNotFound (model_not_found) listing up to eight names. With `name` unset: the only
  // model, adapters not counted, or kInvalidArgument when there are several.
  std::shared_ptr<const ServedModel> Find(const std::optional<std::string>& name) const;

  struct Entry {
    std::string name;
    std::shared_ptr<const ServedModel> model;
  };
  std::vector<Entry> List() const;  // in the order of loading, aliases included
  bool empty() const;
  // Ends every model, whoever holds leases (shutdown: no request runs any more).
  void Clear();

 private:
  // Outlives the registry if leases do.
  struct Leases {
    std::mutex mutex;  // guards both
    std::map<const ServedModel*, int64_t> count;
    std::condition_variable released;  // some count has become zero, or a model was retired
  };
  struct Retired {
    std::shared_ptr<const ServedModel> model;
    std::function<void()> on_gone;
  };

  std::shared_ptr<const ServedModel> Lease(const std::shared_ptr<const ServedModel>& model) const;
  std::shared_ptr<const ServedModel> Erase(const std::string& id);
  void Retire(std::shared_ptr<const ServedModel> model, std::function<void()> on_gone);
  void EndRetired();  // the thread

  const bool any_model_name_;
  mutable std::mutex mutex_;  // guards entries_
  std::vector<Entry> entries_;
  const std::shared_ptr<Leases> leases_ = std::make_shared<Leases>();
  std::vector<Retired> retired_;  // guarded by leases_->mutex, as the next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
