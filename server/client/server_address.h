#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace tandem::server {

inline constexpr const char* kDefaultServerUrl = "http://127.0.0.1:8080";

// Where a server answers, and the keys that it may get.
struct ServerAddress {
  std::string url = {};        // http or https, without "/v1" and a final slash
  std::string api_key = {};    // empty: none
  std::string admin_key = {};  // for paths below /admin; empty: api_key
};

// What a command line says about a server; empty members were not given.
struct AddressWish {
  std::string url{};
  std::filesystem::path key_file{};
  std::filesystem::path data_dir{};  // of a server of this machine; may hold admin.key
};

// Fills in the environment: TANDEM_URL, TANDEM_API_KEY and TANDEM_ADMIN_KEY. A key file is for all
// paths. The admin key of the data directory goes to a loopback address only. Throws
// kInvalidArgument for a bad URL or key, and what reading a key file throws.
ServerAddress ResolveAddress(const AddressWish& wish,
                             const std::function<const char*(const char*)>& environment);

}  // namespace tandem::server
