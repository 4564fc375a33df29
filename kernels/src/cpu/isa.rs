//! The instruction set of the fast paths: a token that only detection creates.

/// Proof of detection. The AVX2 kind proves that AVX2, FMA and F16C are available, as the `unsafe` calls of AVX2 bodies
/// require.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best instruction set of this machine.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Self(Kind::Avx2);
        }
        Self::portable()
    }

    /// Plain Rust, on any machine.
    #[must_use]
    pub fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// All instruction sets that can be tested on this machine.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::portable()];
        if Self::detect() != Self::portable() {
            all.push(Self::detect());
        }
        all
    }

    /// Names for a report; empty for the portable path.
    #[must_use]
    pub fn features(self) -> &'static [&'static str] {
        match self.0 {
            Kind::Portable => &[],
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => &["avx2", "fma", "f16c"],
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn is_avx2(self) -> bool {
        self.0 == Kind::Avx2
    }
}
