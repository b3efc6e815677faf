// Part of the portable program alone. Keeps it from loading libraries of the system that it runs
// on: they belong to another C library, or to another version of it.

#include <nss.h>
#include <openssl/crypto.h>

#include <initializer_list>

namespace {

[[gnu::constructor(101)]] void StayAlone() {
  // /etc/nsswitch.conf may name modules such as `myhostname`. These two are inside of libc.a.
  __nss_configure_lookup("hosts", "files dns");
  for (const char* database : {"passwd", "group", "services", "protocols", "networks"}) {
    __nss_configure_lookup(database, "files");
  }
  // openssl.cnf may name modules as well.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
}

}  // namespace
