//! Enums whose variants are words: the same in JSON, in tables and on command lines.

/// Defines an enum with a word for each variant. The first variant is the default, unless another
/// one is named behind the list.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $name:ident {
            $(#[doc = $first_doc:literal])* $first:ident = $first_word:literal,
            $( $(#[doc = $doc:literal])* $variant:ident = $word:literal, )*
        }
    ) => {
        words! {
            $(#[$meta])*
            $name {
                $(#[doc = $first_doc])* $first = $first_word,
                $( $(#[doc = $doc])* $variant = $word, )*
            }
            default $first
        }
    };
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $(#[doc = $doc:literal])* $variant:ident = $word:literal, )+
        }
        default $default:ident
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $name {
            $( $(#[doc = $doc])* #[serde(rename = $word)] $variant, )+
        }

        impl $name {
            /// All of them, in this order.
            pub const ALL: [$name; [$( $name::$variant, )+].len()] = [$( $name::$variant, )+];

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self {
                    $( $name::$variant => $word, )+
                }
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::$default
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let found = $name::ALL.into_iter().find(|one| one.word() == text);
                found.ok_or_else(|| {
                    let words = $name::ALL.map($name::word).join(", ");
                    format!("{text:?} is not one of {words}")
                })
            }
        }
    };
}

pub(crate) use words;
