#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/options.h"

namespace tandem::server {

// The address that HttpOptions::host names.
struct ListenHost {
  std::string address;       // canonical text, IPv6 without brackets
  bool is_loopback = false;  // only this machine reaches it
  bool is_any = false;       // 0.0.0.0 or ::, every address of this machine
};

// `localhost` means 127.0.0.1. Throws kInvalidArgument unless `host` is that or an IP address.
ListenHost ParseListenHost(const std::string& host);

// Decides which values of the Host header this server answers to. DNS rebinding makes a browser
// send another site's name to this server; the name is the only sign of it. Immutable.
class AllowedHosts {
 public:
  // Throws as ParseListenHost.
  explicit AllowedHosts(const HttpOptions& options);

  // `host` is the value of a Host header, with or without a port. An empty value is allowed, as a
  // missing header is: no browser sends either.
  bool Allows(std::string_view host) const;

 private:
  bool allows_every_host_ = false;
  bool allows_every_address_ = false;
  std::vector<std::string> names_;  // canonical: lower case, addresses without brackets
};

}  // namespace tandem::server
