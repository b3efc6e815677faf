#include "server/models/load_adapter.h"

#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/base/unix_time.h"
#include "engine/io/sha256.h"
#include "engine/model/adapter.h"
#include "server/models/model_provenance.h"

namespace tandem::server {

AdapterSource ParseAdapterSource(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw Error(ErrorCode::kInvalidArgument, "--adapter must be NAME=DIR, got '" + text + "'");
  }
  return {text.substr(0, equals), text.substr(equals + 1), ""};
}

std::shared_ptr<const ServedModel> LoadServedAdapter(const AdapterSource& source,
                                                     std::shared_ptr<const ServedModel> base,
                                                     const engine::EngineOptions& options,
                                                     MemoryReservation memory) {
  auto model = std::make_shared<ServedModel>();
  model->id = source.name;
  model->path = source.path;
  model->created = UnixNow();
  model->owned_by = source.owned_by.empty() ? base->owned_by : source.owned_by;
  model->owner = source.owner;
  model->root = base->root;
  model->provenance = ModelProvenance(model->id, source.path, "");
  model->parent = base->id;
  model->engine = base->engine;
  model->memory = std::move(memory);
  model->adapter = engine::OpenAdapter(source.path, base->loaded(), options);
  model->adapter_rank = model->adapter->rank();
  model->memory.Settle({.weights = model->adapter->bytes()});
  const std::string content = base->loaded().fingerprint + "\n" + model->adapter->fingerprint();
  model->fingerprint =
      "fp_" + engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(content)))).substr(0, 16);
  const engine::Adapter& adapter = *model->adapter;
  spdlog::info("adapter_loaded adapter={} base={} trained_with={} rank={} mib={:.1f}", model->id,
               base->id, Quoted(adapter.origin().base_model), adapter.rank(),
               static_cast<double>(adapter.bytes()) / (1 << 20));
  for (const std::string& difference : adapter.BaseDifferences()) {
    spdlog::warn("adapter_of_another_base adapter={} base={} reason=\"{}\"", model->id, base->id,
                 difference);
  }
  model->base = std::move(base);
  return model;
}

}  // namespace tandem::server
