#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/options.h"

namespace tandem::server {

// The listening address, parsed from HttpOptions::host.
struct ListenHost {
  std::string address;       // canonical text, IPv6 without brackets
  bool is_loopback = false;  // reachable from this machine only
  bool is_any = false;       // 0.0.0.0 or ::, all addresses of this machine
};

// `localhost` means 127.0.0.1. Throws kInvalidArgument unless `host` is `localhost` or an IP
// address.
ListenHost ParseListenHost(const std::string& host);

// Decides which Host headers this server accepts. DNS rebinding makes a browser send another site's
// name to this server, and only the name shows it. Immutable.
class AllowedHosts {
 public:
  // Throws as ParseListenHost.
  explicit AllowedHosts(const HttpOptions& options);

  // `host` is the value of a Host header, with or without a port. An empty value is allowed, as is
  // a missing header: no browser sends either.
  bool Allows(std::string_view host) const;

 private:
  bool allows_every_host_ = false;
  bool allows_every_address_ = false;
  std::vector<std::string> names_;  // canonical: lower case, addresses without brackets
};

}  // namespace tandem::server
