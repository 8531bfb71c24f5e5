//! The settings of a server, and the sources of their values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::Emulate;
use crate::words::words;

words! {
    /// The source of a value.
    Source {
        /// Nothing was said: the default holds.
        Default = "default",
        /// The configuration file.
        File = "configuration",
        /// An option of the command line.
        Option = "option",
        /// The value was set while the server ran.
        Set = "set",
    }
}

words! {
    /// When a new value is in effect.
    Changes {
        /// At once.
        AtOnce = "at once",
        /// With the next start: the value is changed in the configuration file.
        Restart = "restart",
    }
}

/// A value as the configuration file has it: a number, or a text such as "64M" (bytes), "30s"
/// (time), "02:30" (time of day) or a word.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SettingValue {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl Default for SettingValue {
    fn default() -> SettingValue {
        SettingValue::Number(0)
    }
}

impl std::fmt::Display for SettingValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingValue::Number(n) => f.pad(&n.to_string()),
            SettingValue::Text(text) => f.pad(text),
        }
    }
}

/// The values of a setting from the least to the most; null of a time of day.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SettingRange {
    /// The least value.
    pub least: Option<SettingValue>,
    /// The largest value.
    pub most: Option<SettingValue>,
}

/// The values of a setting that is a word.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SettingWords {
    /// The words.
    pub one_of: Vec<String>,
}

/// The values that a setting can have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SettingValues {
    /// One of some words.
    Words(SettingWords),
    /// A value of a range.
    Range(SettingRange),
}

impl Default for SettingValues {
    fn default() -> SettingValues {
        SettingValues::Range(SettingRange::default())
    }
}

/// A setting.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// The name of the setting, with its section.
    pub key: String,
    /// The value.
    pub value: SettingValue,
    /// The value that holds if nothing is said.
    pub default: SettingValue,
    /// The source of the value.
    pub from: Source,
    /// The values that the setting can have.
    pub range: SettingValues,
    /// The same for people.
    pub range_text: String,
    /// When a new value is in effect.
    pub changes: Changes,
    /// The meaning of the setting, for people.
    pub what: String,
}

/// A setting that was changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SettingChange {
    /// The setting as it is now.
    #[serde(flatten)]
    pub setting: Setting,
    /// The value before.
    pub before: SettingValue,
    /// The value was written to the configuration file, too.
    pub saved: bool,
    /// Text that says what hides the saved value at the next start; null: nothing does.
    pub note: Option<String>,
}

/// A device that is made to behave like another kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct NamedDevice {
    /// The path of the device.
    pub path: String,
    /// The kind of device that the device is made to behave like on purpose.
    pub emulate: Emulate,
}

/// The volumes that a client over TLS may open.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct AccessRule {
    /// A name of the client's certificate or key.
    pub client: String,
    /// Names of volumes, in which * stands for any text and ? for one character.
    pub volumes: Vec<String>,
    /// The client may change nothing; absent: it may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A member of a list in the configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PlaceItem {
    /// A text.
    Text(String),
    /// A device that is made to behave like another kind.
    Device(NamedDevice),
    /// The volumes that a client over TLS may open.
    Rule(AccessRule),
}

/// A value of a place, as the configuration file has it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PlaceValue {
    /// Nothing.
    #[default]
    None,
    /// True or false.
    Flag(bool),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<PlaceItem>),
}

impl PlaceItem {
    /// The path of a device; `None` of anything else.
    pub fn path(&self) -> Option<&str> {
        match self {
            PlaceItem::Text(path) => Some(path),
            PlaceItem::Device(device) => Some(&device.path),
            PlaceItem::Rule(_) => None,
        }
    }
}

impl PlaceValue {
    /// The members of a list; none of anything else.
    pub fn items(&self) -> &[PlaceItem] {
        match self {
            PlaceValue::List(items) => items,
            _ => &[],
        }
    }

    /// A list of texts.
    pub fn of_texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> PlaceValue {
        PlaceValue::List(texts.into_iter().map(|text| PlaceItem::Text(text.into())).collect())
    }
}

impl From<&str> for PlaceValue {
    fn from(text: &str) -> PlaceValue {
        PlaceValue::Text(text.to_owned())
    }
}

impl From<String> for PlaceValue {
    fn from(text: String) -> PlaceValue {
        PlaceValue::Text(text)
    }
}

/// A key of the configuration file that is no setting: where things are, and how to log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// The name of the key, with its section if it has one.
    pub key: String,
    /// The value; null: none.
    pub value: PlaceValue,
    /// The value that holds if nothing is said, for people.
    pub default: String,
    /// The source of the value.
    pub from: Source,
    /// When a new value is in effect.
    pub changes: Changes,
    /// The meaning of the key, for people.
    pub what: String,
}

/// A key of the configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConfigEntry {
    /// A setting.
    Setting(Setting),
    /// A key that is no setting.
    Place(Place),
}

impl ConfigEntry {
    /// The name of the key, with its section if it has one.
    pub fn key(&self) -> &str {
        match self {
            ConfigEntry::Setting(setting) => &setting.key,
            ConfigEntry::Place(place) => &place.key,
        }
    }

    /// The source of the value.
    pub fn from(&self) -> Source {
        match self {
            ConfigEntry::Setting(setting) => setting.from,
            ConfigEntry::Place(place) => place.from,
        }
    }
}

/// The configuration of the server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The configuration file; null if there is none.
    pub file: Option<String>,
    /// All settings, in the order of the configuration file; those that have no range can be
    /// changed there alone.
    pub settings: Vec<ConfigEntry>,
}
