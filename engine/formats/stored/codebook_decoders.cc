#include <array>
#include <bit>
#include <string_view>

#include "engine/formats/stored/block_decoders.h"

// The IQ formats store an index into a code book for four or eight magnitudes. Signs, scales and
// upper bits of the index follow separately.
namespace tandem::engine {
namespace {

// The code books of the GGUF formats. An entry is a number to the base of its count of magnitudes,
// the first magnitude's digit lowest. Entries ascend, and each text lists their differences: a
// character from ']' (0) to '}' (32) adds its value and ends an entry, '~' adds 33.
constexpr std::string_view kIq2XxsSteps =
    "]______c_a___cca_c_cie_cak{ii_o~`w_cg_c_aig_cic_aikq_gu_o{oca_cia_c_suu~tg~~a_cgeoicakcioeg~"
    "lg~nciaiq~f}~^k~~__coywa~~_~j~h_csme_~ne~l_~~k_cok~dyq~~{ui~l~~~x~p_cca_cceag_cooyeaueueg{ci"
    "~`msg~x~~m_coa~n~fag~t}ocac_~`cuw~j~~a~~k_u~~e~b~fgc}~x~x~~icou{~d~t{~`a~~q_~j~~~~_~~~~~~m_c"
    "qyyii~|~~c_cako~`}~^sqo~b~~m~~s~~ecic~js~d~v~nqg~~s~~~~~l~h~~~~k~^s{~~e~~{~~~~~~~~]~l";

constexpr std::string_view kIq2XsSteps =
    "]____________a_______a_c___a_a_g__________c___a_cca_co___a_cg_cakeq_______a_c___a__ag_co___a"
    "_cg_cgey_cka_yu______cac_ccioe__coycqoc~hag_______a_c___a_ce__co___a_cg_coi_k__aoo~`___a_cg_"
    "a_icy_co~ris~l_c_miqsa~j~~_~f_______cg_coog_cocm}q~^ua_cm_~ryg}im~xac_gsqk~viui~ba_q_______a"
    "_c______cac_co___a_cg_coame_c_k_~r___a_a_g_coim_cic~hgesc~j_coaee~^gqcm}~~i___a_cca_coy_cak_"
    "~p{~n__cgeogoec~lc~d}seime~^yg_~~~hu_coieiq_~~~`k{mk~~goa~h~~s~p~n~|~^e~^___a_ce__co_s____ao"
    "gc~bo~`_mca_c__komq{~jq~bycmsg_se~~{~^cega_cokmuqy~~eqqawcc~|~b_~h~~u~d~b~x}~`_a_ge~j~jc~^a_"
    "aqyo~`~d~~~~iqqg_a~lcc~r_~j_~bm";

constexpr std::string_view kIq2SSteps =
    "]____________a_______a_______a_caa________a_c___a____a_a_c__c_c___a_ce_____akaaaee_______a__"
    "_____________c____a_a_c_________a_a_______a_c___a_cg____aka_a_cg_co___a____aa________a_caek_"
    "_c___aea_a_cgeog_ea_g~^i_______a__a___a_______a__aa_a_c____________a_______a_c___a_m_a_ac_ca"
    "c_m_co___a____a_a_______a_c___a_cg_______a_c___a_cg_coa_a_cg_cow_____a_ae___a_cg_u___a_cg_cm"
    "sgcok~d___a____aa__c__eceak__c__ce__c_cg_coeia_acu_ma____a_a_c___a_cg_coa_a_cg_ckay_com~bac_"
    "m_cwo__c~vsiyi_q___________a___________c_ca_a_c___a______c_______a_c___a_cg_c___cca_a_cg_u__"
    "__________a_______a_c___a_cg_______a_c___a_ce__co___a_cg_cosc_a____a_c___a_cico___a_cg_cokk_"
    "co~r___a_______a_______a_c___a_m_______a_c___a_cg_coa_a_cg_cm_y_______a_c___a_cg_co___a_cg_c"
    "oy_cka~r___a_cg_cegy_co~rm~fqa__a___a_ca_a_cico___a_cg_comkcok}ea_a_cg_coy_coemkm~~]m_c~dqiw"
    "~~o~he___a_a_ac_c___aeac_m_a____a_c___a_m_cm_aa__m_c~j_______ae___a_cg_co___a_cg_coeq_cm_~ra"
    "c_m_c~be_us~ps_ioe_a____cc___a_cg_coac_m_ce~b_co~na___a_cg_cokk_co~fae}m~^_cka~p_~^a~~~doaaa"
    "ec__c~bcys~^cia_{a_ma_co~^kcm~~~`~pm~n~jqy_g_a~`q";

constexpr std::string_view kIq3XxsSteps =
    "]__b_a^_dfv_a_b_da`_dhie__bd_d_agckac^_h~_pqbhi_acpm~otqa_rkm_b_d_b__h^u_dd_~k_b_dd~^c_kfjmh"
    "a~_~daopi~~hk}_d_b_a`f|__`_ddxa^e_dc^_j^jqda~ha~]kuqgx~~`_htyd_d_rjbc_kfh_x_bjrmlo~ylpccix|o"
    "r~drqhk_ia~~hql^mcn{|~ah~]kr~~h`_k~nttecmt|k}e~ezha~_et~~j~hk~nm_kz}{~a~`c~~a~]~a~m~dk~n__^o"
    "m~hg~fxbsjkr~]m|_o~~_";

constexpr std::string_view kIq3SSteps =
    "]^^`_^^^___^acb_`___b_d``^^^_a^a``a_adjabc^a_^```a`ac`___j`eca`_d_`ca_j_a`ha_`cc`clg_i_abca_"
    "lbh`_knld__i_abjaq^^_a^___^_d`_k_`fc^_`_abd`cd_kc_g`_^acc`g`gd``^`cc^abnch_b_j_da_ard`cd_l~c"
    "a`j_x_b_diance^___^___`_a^_d__`_j^`_`_c`a``a`cdu``g_bd_gag`a_`af_b_dckhcf`d`av`dbfj^hje_bgya"
    "qaj_hbwd___`d__b_`_gce__db_jmga_gcg_ivdab_a^f_ackecbadncajd_hbggjpp}_j_h~_acca``ddmgb__dcbcc"
    "aq_bbagbl`cib_b_da~__oh^vi_g~]vnqubhhcvcacka``icb__bdf}cfgbcjtb^ljbicc`igi~`ip_~s}_k~s__i_rm"
    "mdzsochbceibl~qklk`vqrx~e_~qa`f_i_icmdhl_y`ac`dnvu`ksacbu~fm}t~c";

constexpr std::string_view kIq1Steps =
    "]_____`b_a_bc__eb_a_bb_a_a^c___^bca_a_a___^dc__eb_a_bb_a_bccba__a__``__a_h__ecccaa^lccc_^^e_"
    "_e_aa^^_^^_______f`____^^_kai_c___`^a_cc_ah_a_bb_a_bcaeb_a_bb_a_bc_ab^ce^`c_ai___cb_a_bb_a_b"
    "cc``b____bb_a_g^_ab^c_ca_a_^`i__b`c_______a_aca^^^^^^__aee_c_m__ebb_a___a_ec__eca_b^_^`ab`^^"
    "___^^_a__ca_`^_^^__^`a_a__^^________^^b^^^^_^__^^___^^__^^_^^_^^__c_^^e^^__aa_^^___`^^^`_^_^"
    "^c``_eaiaec____a__^^___cc_gk__a_`d^^_a_^^_^^aae`^__aa_fdd_d______aa_cca`g_a_bb____bcc``b_a_b"
    "b____bc_acd^ac____^^ebb_ccb__`b_a_bca_ccb__`b_a_be__ce^^_a___cec_a``iccc_a_a_^`a__g_`^______"
    "cb_bccccb^cb_aeg_a_bb_a_bc_gb_a_g_a_e`_acg_a_c___cbb_b^b_a_g_a_bca_cb_a_bb_a_bcaeia______ma`"
    "aa^___a_^^__a_c____^^_^b_____a__b^^hc__ecg_aaafbgci`fc____^^b^____a____b^c`^_a__^^__aa__^^__"
    "^_^^^^`_^^_a^^_a_^^_^b___``b^____a____`^^_^_a__a`aa^c__ec`abdb_a_a___cc___cc`^`^`^_a__aaa_^^"
    "^^____^`c_a_^^a___mm__c__aakgc_^^_a_a__a_a_a_^^_c_e_c_`^a_c_^^__^^^^_a^^___^^__^^^^^^^^__^^_"
    "a_c_^^__aa_ac_a__e_a__^^_a_fb__`^af^c_^^^^``____^^_^^^_^^^^^_^^^^__c___^^_`_^a_^^^^__^^^^^_^"
    "__^^__^^^^^^^_^^^^^^^^^^_^^^^^__^`^^^_^^^^`_^^__^^^_^^`_^_^_^^^^^^^``^^^^^^^^^^^^^__^`a_^^^^"
    "_`a`_^^^b^^__a_adb____^^^^__^^db____ac`^_a__^^_cc_^^__^^^^^^^^__^^_````_^^^^ce`da^a^_c_^``^^"
    "^a____d`_^^__ie__ceca^^_____`jec___a_c^`_c```^_c^`ab`_ca_ia_h^ae^^`jcael^_^`_a________^^_^^_"
    "_e^`__^^^^___ac___`^_k^^__^_^^_`_^^_d_^_`^_^`_^^bbcbb^^_a____^^^_^a_`__aa_^^_`_`l_ccg_a_cccb"
    "eb_cac____^`^^a_^^__aa`^bbc_^`ia^j_a_a__a^`dd`_ca_a_g_a_bb^___cb_a_bb_a_bc___cc_a___^^^b__c`"
    "b__cb_a_bb_a_h_acb_a_bb_a_jai_d`a__akaica_ac__^`_a_^^_^b^^_________eka_cc_a^^a`^_a`bcdac_a_b"
    "b_a__`c_ac`__a_bb_a_b^b__ec______a__gg_cb_a_bb_a_bc__j_a_bb_a_bca^^cca_c__e^bc___cc____a____"
    "___ab^_^^_a_e_c__a___cc_ace______e_ce_h`__aa_eae__^^^^_^^_e_c^^_ac_a__^^_^^_```^__^^__^^^^^^"
    "^^__^^_``_a^^^^_^^______ca`_b_c_^`^_^_c_b^a^`^^e__cg_ccaa__^`a^fca_ce_______^^__a______^^_a_"
    "^`__c__a_aeffe___a_aic_^^j_a_bb_a_bc___h_a_bb_a_b``___^l_``____gb_`_ja_^daa_bca_cb_a_bb_a_nc"
    "c_c`^___`^^^cy_____e_a_c_^^_ca__^^_a__mca`_`e_``_^^`_iaa^_`__a_a_g_a_h___h_a_bb_a_bea``ceaa_"
    "a_hbj_a_g_a_h__j_a_bb_a_";

// Entries of kDigits magnitudes each.
template <size_t kEntries, size_t kDigits>
using CodeBook = std::array<std::array<int8_t, kDigits>, kEntries>;

template <size_t kEntries, size_t kDigits, size_t kBase>
constexpr CodeBook<kEntries, kDigits> Expand(std::string_view steps,
                                             const std::array<int8_t, kBase>& magnitudes) {
  CodeBook<kEntries, kDigits> book{};
  size_t entry = 0, code = 0;
  for (const char step : steps) {
    code += static_cast<size_t>(step - ']');
    if (step == '~') continue;
    size_t rest = code;
    for (int8_t& value : book.at(entry)) {
      value = magnitudes.at(rest % kBase);
      rest /= kBase;
    }
    ++entry;
  }
  // A text of another length does not compile.
  return entry == kEntries ? book : throw "wrong number of entries";
}

constexpr std::array<int8_t, 3> kTwoBitMagnitudes = {8, 25, 43};
constexpr auto kIq2XxsBook = Expand<256, 8>(kIq2XxsSteps, kTwoBitMagnitudes);
constexpr auto kIq2XsBook = Expand<512, 8>(kIq2XsSteps, kTwoBitMagnitudes);
constexpr auto kIq2SBook = Expand<1024, 8>(kIq2SSteps, kTwoBitMagnitudes);
constexpr auto kIq3XxsBook =
    Expand<256, 4>(kIq3XxsSteps, std::array<int8_t, 8>{4, 12, 20, 28, 36, 44, 52, 62});
constexpr auto kIq3SBook =
    Expand<512, 4>(kIq3SSteps, std::array<int8_t, 8>{1, 3, 5, 7, 9, 11, 13, 15});
constexpr auto kIq1Book = Expand<2048, 8>(kIq1Steps, std::array<int8_t, 3>{-1, 0, 1});

// Seven signs and an eighth that makes their number even.
uint8_t EvenSigns(uint32_t index) {
  const uint32_t seven = index & 127;
  return static_cast<uint8_t>(seven | (std::popcount(seven) % 2) << 7);
}

// Writes an entry with a scale; bit i of `signs` negates magnitude i.
template <size_t kDigits>
float* Put(const std::array<int8_t, kDigits>& entry, float scale, uint32_t signs, float* out) {
  for (size_t i = 0; i < kDigits; ++i) {
    const float value = scale * static_cast<float>(entry[i]);
    *out++ = (signs >> i & 1) != 0 ? -value : value;
  }
  return out;
}

// Entries of IQ1 are shifted by an eighth.
float* PutShifted(uint32_t index, float scale, bool down, float* out) {
  for (const int8_t value : kIq1Book[index]) {
    *out++ = scale * (static_cast<float>(value) + (down ? -0.125f : 0.125f));
  }
  return out;
}

}  // namespace

// Layout: d, then per 32 numbers four indices and a word of four times seven signs and a scale.
void DecodeIQ2_XXS(BlockView b, float* out) {
  for (int64_t group = 0; group < 8; ++group) {
    const int64_t at = 2 + group * 8;
    const uint32_t word = b.Long(at + 4);
    const float scale = b.Half(0) * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (int64_t i = 0; i < 4; ++i) {
      out = Put(kIq2XxsBook[b.Byte(at + i)], scale, EvenSigns(word >> (7 * i)), out);
    }
  }
}

// Layout: d, 32 words of nine index bits and seven signs, sixteen scales of four bits.
void DecodeIQ2_XS(BlockView b, float* out) {
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t word = b.Word(2 + 2 * i);
    const auto step = static_cast<float>(b.NibbleInTurn(66, i / 2));
    const float scale = b.Half(0) * (0.5f + step) * 0.25f;
    out = Put(kIq2XsBook[word & 511], scale, EvenSigns(word >> 9), out);
  }
}

// Layout: d, low bytes of 32 indices, their signs, upper bits of four indices a byte, scales.
void DecodeIQ2_S(BlockView b, float* out) {
  for (int64_t i = 0; i < 32; ++i) {
    const int high = b.Byte(66 + i / 4) >> (i % 4 * 2) & 3;
    const auto step = static_cast<float>(b.NibbleInTurn(74, i / 2));
    const float scale = b.Half(0) * (0.5f + step) * 0.25f;
    const auto index = static_cast<size_t>(b.Byte(2 + i) | high << 8);
    out = Put(kIq2SBook[index], scale, b.Byte(34 + i), out);
  }
}

// Layout: d, 64 indices, then per 32 numbers a word of four times seven signs and a scale.
void DecodeIQ3_XXS(BlockView b, float* out) {
  for (int64_t i = 0; i < 64; ++i) {
    const uint32_t word = b.Long(66 + i / 8 * 4);
    const float scale = b.Half(0) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    const uint8_t signs = EvenSigns(word >> (i / 2 % 4 * 7));
    out = Put(kIq3XxsBook[b.Byte(2 + i)], scale, signs >> (i % 2 * 4), out);
  }
}

// Layout: d, low bytes of 64 indices, their upper bits, 32 bytes of signs, eight scales.
void DecodeIQ3_S(BlockView b, float* out) {
  for (int64_t i = 0; i < 64; ++i) {
    const int step = b.NibbleInTurn(106, i / 8);
    const float scale = b.Half(0) * static_cast<float>(1 + 2 * step);
    const auto index = static_cast<size_t>(b.Byte(2 + i) | b.Bit(66, i) << 8);
    out = Put(kIq3SBook[index], scale, b.NibbleInTurn(74, i), out);
  }
}

// Layout: d, low bytes of 32 indices, then per 32 numbers a word of four times three index bits, a
// scale and the direction of the shift.
void DecodeIQ1_S(BlockView b, float* out) {
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t word = b.Word(34 + i / 4 * 2);
    const float scale = b.Half(0) * static_cast<float>(2 * (word >> 12 & 7) + 1);
    const uint32_t high = word >> (i % 4 * 3) & 7;
    out = PutShifted(b.Byte(2 + i) | high << 8, scale, (word & 0x8000) != 0, out);
  }
}

// Layout: low bytes of 32 indices, a nibble each of three index bits and the direction of the
// shift, four words of four scales. The upper nibbles of the words make d.
void DecodeIQ1_M(BlockView b, float* out) {
  constexpr int64_t kHigh = 32, kScales = 48;
  uint16_t d = 0;
  for (int64_t i = 0; i < 4; ++i) {
    d = static_cast<uint16_t>(d | (b.Word(kScales + 2 * i) >> 12) << (4 * i));
  }
  for (int64_t i = 0; i < 32; ++i) {
    const int64_t group = i / 2;
    const int step = b.Word(kScales + group / 4 * 2) >> (group % 4 * 3) & 7;
    const float scale = F16ToFloat(d) * static_cast<float>(2 * step + 1);
    const auto high = static_cast<uint32_t>(b.NibbleInTurn(kHigh, i));
    out = PutShifted(b.Byte(i) | (high & 7) << 8, scale, (high & 8) != 0, out);
  }
}

}  // namespace tandem::engine
