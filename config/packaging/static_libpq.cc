// Part of the portable program alone. Debian's static libpq asks Kerberos and LDAP, of which Debian
// has no static archives. These functions report that there is no ticket and no LDAP server. libpq
// then uses passwords (SCRAM) and certificates.

#include <cstdint>

namespace {

constexpr uint32_t kGssFailure = 13u << 16;  // GSS_S_FAILURE of RFC 2744
constexpr int kLdapFailure = -1;             // LDAP_SERVER_DOWN

}  // namespace

extern "C" {

extern void* const GSS_C_NT_HOSTBASED_SERVICE;
void* const GSS_C_NT_HOSTBASED_SERVICE = nullptr;

// libpq looks at the result alone and reads no output after a failure.
uint32_t gss_acquire_cred() { return kGssFailure; }
uint32_t gss_delete_sec_context() { return 0; }
uint32_t gss_display_status() { return kGssFailure; }
uint32_t gss_import_name() { return kGssFailure; }
uint32_t gss_init_sec_context() { return kGssFailure; }
uint32_t gss_release_buffer() { return 0; }
uint32_t gss_release_cred() { return 0; }
uint32_t gss_release_name() { return 0; }
uint32_t gss_unwrap() { return kGssFailure; }
uint32_t gss_wrap() { return kGssFailure; }
uint32_t gss_wrap_size_limit() { return kGssFailure; }

int ldap_count_entries() { return 0; }
const char* ldap_err2string() { return "this program has no LDAP"; }
void* ldap_first_entry() { return nullptr; }
void* ldap_get_values_len() { return nullptr; }
void* ldap_init() { return nullptr; }
int ldap_msgfree() { return 0; }
int ldap_result() { return kLdapFailure; }
int ldap_search_st() { return kLdapFailure; }
int ldap_set_option() { return kLdapFailure; }
int ldap_simple_bind() { return kLdapFailure; }
int ldap_unbind() { return 0; }
void ldap_value_free_len() {}

}  // extern "C"
