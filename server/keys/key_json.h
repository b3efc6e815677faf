#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/keys/key_store.h"

namespace tandem::server {

// The key object of /admin/keys and of `tandem keys --json`, without the key itself.
nlohmann::ordered_json KeyJson(const KeyRecord& key);

}  // namespace tandem::server
