#include "server/http/allowed_hosts.h"

#include <algorithm>
#include <optional>

#include "engine/base/ascii.h"
#include "engine/base/error.h"
#include "server/http/net.h"

namespace tandem::server {
namespace {

std::optional<net::ip::address> AddressOf(const std::string& text) {
  boost::system::error_code error;
  net::ip::address address = net::ip::make_address(text, error);
  if (error) return std::nullopt;
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6());
  }
  return address;
}

// Lower case, without a final dot or the brackets of an IPv6 address; addresses in canonical form.
std::string Canonical(std::string_view name) {
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string text = LowerCase(name);
  if (const auto address = AddressOf(text)) return address->to_string();
  return text;
}

// The host of `host[:port]`; nullopt for anything else.
std::optional<std::string_view> WithoutPort(std::string_view text) {
  // The colons of an IPv6 address are inside its brackets.
  const size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  if (bracket == std::string_view::npos) return std::nullopt;
  const size_t colon = text.find(':', bracket);
  if (colon == std::string_view::npos) return text;
  const std::string_view port = text.substr(colon + 1);
  if (!std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return text.substr(0, colon);
}

}  // namespace

ListenHost ParseListenHost(const std::string& host) {
  boost::system::error_code error;
  const net::ip::address address =
      net::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    throw Error(ErrorCode::kInvalidArgument,
                "--host must be an IP address of this machine or 'localhost', got '" + host + "'");
  }
  return {address.to_string(), address.is_loopback(), address.is_unspecified()};
}

AllowedHosts::AllowedHosts(const HttpOptions& options) {
  const ListenHost own = ParseListenHost(options.host);
  // A page of another site has no key to send. If every caller needs a key, the name is therefore
  // checked only if the operator lists names.
  allows_every_host_ = options.requires_key && options.allowed_hosts.empty();
  allows_every_address_ = own.is_any;
  names_ = {"localhost", Canonical(own.address)};
  for (const std::string& name : options.allowed_hosts) {
    if (name == "*") allows_every_host_ = true;
    names_.push_back(Canonical(name));
  }
}

bool AllowedHosts::Allows(std::string_view host) const {
  if (allows_every_host_ || host.empty()) return true;
  const std::optional<std::string_view> bare = WithoutPort(host);
  if (!bare) return false;
  const std::string name = Canonical(*bare);
  // Browsers resolve names below localhost to this machine without asking DNS.
  if (name.ends_with(".localhost")) return true;
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) return true;
  const std::optional<net::ip::address> address = AddressOf(name);
  return address && (allows_every_address_ || address->is_loopback());
}

}  // namespace tandem::server
